"""What the commands share that make many runs: own words, runs that are made once, and the table that comes out."""
from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException

from bench.validity import ended_early
from tokenrouter.config import convert
from tokenrouter.core import InputError

ROOT = Path(__file__).resolve().parents[1]
Options = TypeVar("Options", bound=msgspec.Struct)


class RunFailed(Exception):
    """bench/run.py ended with this exit code; it has said why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def split(words: Sequence[str], options: type[Options]) -> tuple[Options, list[str]]:
    """The command's own words as its options, and the others, which are overrides for bench/run.py.

    Words are Hydra's `name=value`; where a list is expected, `a,b` and `a` are lists too. InputError for an own one of
    another type or out of range.
    """
    types, values, overrides = get_type_hints(options), {}, []
    parser = OverridesParser.create()
    for word in words:
        name = word.partition("=")[0]
        if name not in types:
            overrides.append(word)
            continue
        try:
            value: Any = parser.parse_override(word).value()
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


def run(folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The summary of the run with these overrides, made in `folder` unless it is there already.

    One that was interrupted or failed on its way is made again. RunFailed if bench/run.py fails; InputError where the
    folder holds another run.
    """
    file = folder / "summary.json"
    if file.is_file():
        summary: dict[str, Any] = json.loads(file.read_text())
        command, asked = summary["provenance"]["command"], shlex.join(["python", "bench/run.py", *overrides])
        if command != asked:
            raise InputError(f"out={folder.parent}: holds the run {folder.name} of {command!r}, not of {asked!r}; "
                             "allowed is another folder")
        if not ended_early(summary):
            return summary
    code = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "run.py"), *overrides, f"hydra.run.dir={folder}"]).returncode
    if code:
        raise RunFailed(code)
    made: dict[str, Any] = json.loads(file.read_text())
    return made


def write_table(frame: pd.DataFrame, csv: Path | str | None, markdown: Path | str | None) -> None:
    """As CSV and as Markdown, each to its file, if there is one."""
    if csv:
        frame.to_csv(csv, index=False)
    if markdown:
        Path(markdown).write_text(frame.to_markdown(index=False) + "\n")


def command(main: Callable[[Sequence[str]], None]) -> int:
    """Exit code of a command on the words it was given: bench/run.py's, and 2, with one line, for bad input."""
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as failed:
        return failed.code
    except KeyboardInterrupt:
        return 130
    return 0
