"""What the commands share that make many runs: own words, runs that are made once, and the table that comes out."""
from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException

from bench.validity import ended_early
from tokenrouter.config import convert
from tokenrouter.core import InputError
from tokenrouter.subserver.process import signal_on_death

ROOT = Path(__file__).resolve().parents[1]
Options = TypeVar("Options", bound=msgspec.Struct)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class RunFailed(Exception):
    """bench/run.py ended with this exit code; it has said why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Interrupted(KeyboardInterrupt):
    """A signal has asked for the end. `kept`: what there is by then, and how to go on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number, self.kept = number, ""


class Turn(NamedTuple):
    """One run of several. `kind`: those of one kind take equally long; `label`: what is said of it."""

    kind: str
    label: str
    folder: Path
    overrides: list[str]


def split(words: Sequence[str], options: type[Options]) -> tuple[Options, list[str]]:
    """The command's own words as its options, and the others, which are overrides for bench/run.py.

    Words are Hydra's `name=value`, own ones also with `--` before them; where a list is expected, `a,b` and `a` are
    lists too. InputError for an own one of another type or out of range.
    """
    types, values, overrides = get_type_hints(options), {}, []
    parser = OverridesParser.create()
    for word in words:
        own = word.removeprefix("--")
        name = own.partition("=")[0]
        if name not in types:
            overrides.append(word)
            continue
        try:
            value: Any = parser.parse_override(own).value()
        except HydraException:
            raise InputError(f"{word}: not understood; allowed is name=value, as Hydra reads it") from None
        if isinstance(value, ChoiceSweep):
            value = list(value.list)
        if value is not None and not isinstance(value, list) and _is_list(types[name]):
            value = [value]
        values[name] = value
    return convert(values, options), overrides


def sweep(override: str) -> tuple[str, list[str]]:
    """The name of an override and its values, as Hydra writes them: several where it is a sweep, `name=a,b`."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        raise InputError(f"{override}: not understood; allowed is name=value, as Hydra reads it") from None
    name, _, text = override.partition("=")
    return name, list(parsed.sweep_string_iterator()) if parsed.is_sweep_override() else [text]


def _is_list(hint: Any) -> bool:
    """Of what, or None, does not matter."""
    return get_origin(hint) is list or any(get_origin(part) is list for part in get_args(hint))


def finished(folder: Path, overrides: Sequence[str]) -> dict[str, Any] | None:
    """The summary of the run with these overrides, if `folder` has it, it was not interrupted, did not fail on its way,
    and some request was answered. InputError where the folder holds another run."""
    file = folder / "summary.json"
    if not file.is_file():
        return None
    summary: dict[str, Any] = json.loads(file.read_text())
    command, asked = summary["provenance"]["command"], shlex.join(["python", "bench/run.py", *overrides])
    if command != asked:
        raise InputError(f"out={folder.parent}: holds the run {folder.name} of {command!r}, not of {asked!r}; "
                         "allowed is another folder")
    return None if ended_early(summary) or not summary["completed"] else summary


def run(folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The summary of the run with these overrides, made in `folder` unless it is finished there already.

    RunFailed if bench/run.py fails; Interrupted when it has ended after a signal; InputError where the folder holds
    another run.
    """
    if (there := finished(folder, overrides)) is not None:
        return there
    code = _execute([sys.executable, str(ROOT / "bench" / "run.py"), *overrides, f"hydra.run.dir={folder}"])
    if code:
        raise RunFailed(code)
    made: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return made


def run_all(turns: Sequence[Turn], once: int) -> Iterator[dict[str, Any]]:
    """The summaries of runs that are made one after the other, with a line before each: which of how many it is and,
    when the first `once` are over, how long the rest takes. Raises as `run`."""
    took: dict[str, float] = {}  # seconds, by kind
    for number, turn in enumerate(turns, start=1):
        there = finished(turn.folder, turn.overrides) is not None
        note = ", there already" if there else ""
        if not there and number > once and took:
            usual = fmean(took.values())
            left = sum(took.get(other.kind, usual) for other in turns[number - 1:])
            note = f"; all done in about {duration(left)}"
        print(f"turn {number} of {len(turns)}: {turn.label}{note}", flush=True)
        began = time.monotonic()
        summary = run(turn.folder, turn.overrides)
        if not there:
            took[turn.kind] = time.monotonic() - began
        yield summary


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _execute(words: Sequence[str]) -> int:
    """Exit code of a program. A signal goes on to it as one SIGTERM, so that it writes what it has, and is raised when
    it has ended; a second one kills it."""
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if process is None:
            return  # it is told as soon as it is there
        if len(received) == 1:
            process.terminate()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    with _signals(receive):
        # In a group of its own: what a terminal sends to ours, it would get twice.
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, process_group=0,
                                   preexec_fn=partial(signal_on_death, signal.SIGTERM))
        if received:
            process.terminate()
        code = process.wait()
    if received:
        raise Interrupted(received[0])
    return code


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """`handler` gets the signals that end a program, but those that its caller has switched off."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, old in before.items():
        if old is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def check_writable(**files: Path | str | None) -> None:
    """InputError for one, by its option's name, that could not be written: hours of runs must not end with that."""
    for option, name in files.items():
        if name is None:
            continue
        file = Path(name)
        there = file if file.exists() else file.parent
        if file.is_dir() or not file.parent.is_dir() or not os.access(there, os.W_OK):
            raise InputError(f"{option}={name}: allowed is a file in a folder that is there and can be written")


def write_table(frame: pd.DataFrame, csv: Path | str | None, markdown: Path | str | None) -> None:
    """As CSV and as Markdown, each to its file, if there is one."""
    if csv:
        frame.to_csv(csv, index=False)
    if markdown:
        Path(markdown).write_text(frame.to_markdown(index=False) + "\n")


def command(main: Callable[[Sequence[str]], None]) -> int:
    """Exit code of a command on the words it was given: bench/run.py's; with one line 2 for bad input, and 128 and its
    number for a signal (130: Ctrl-C, 143: SIGTERM)."""

    def receive(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    try:
        with _signals(receive):
            main(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as failed:
        return failed.code
    except Interrupted as stopped:
        print(f"stopped: {stopped.kept}" if stopped.kept else "stopped", file=sys.stderr)
        return 128 + stopped.number
    return 0
