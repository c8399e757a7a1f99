"""What the zoo's commands share: `key=value` arguments, a progress bar, and how errors end them."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar

from tokenrouter.core import InputError
from tokenrouter.waiting import Lines

GROUPS = ("algo", "models", "workload")  # keys that begin so choose files of conf/, or override their fields
Options = TypeVar("Options", bound=msgspec.Struct)


def split_arguments(arguments: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Overrides for conf/, and the command's own keys."""
    overrides, own = [], {}
    for argument in arguments:
        key, found, value = argument.partition("=")
        if not found:
            raise InputError(f"{argument}: allowed is key=value")
        if key.split(".")[0] in GROUPS:
            overrides.append(argument)
        else:
            own[key] = value
    return overrides, own


def convert(values: dict[str, str], options: type[Options]) -> Options:
    """The command's own keys as its options; InputError for an unknown, missing or ill-typed one."""
    known = {field.encode_name for field in msgspec.structs.fields(options)}
    for key in values:
        if key not in known:
            raise InputError(f"{key}={values[key]}: unknown; allowed are {', '.join([*GROUPS, *sorted(known)])}")
    try:
        return msgspec.convert(values, options, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        key = place.rstrip("`")
        raise InputError(f"{key}={values[key]}: {reason}" if key else reason) from None


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with count, time gone and time left on standard error; where that is no terminal, a line now and then."""
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  TimeRemainingColumn(), console=console, disable=not console.is_terminal,
                  speed_estimate_period=3600) as bar:
        if console.is_terminal:
            yield bar
            return
        with Lines(lambda _: _tell(bar)):
            yield bar


def _tell(bar: Progress) -> None:
    for task in bar.tasks:
        if task.remaining:
            left = "" if task.time_remaining is None else f", left: {task.time_remaining:.0f} s"
            bar.console.print(f"{task.description}: {task.completed:.0f}/{task.total:.0f}{left}", highlight=False,
                              markup=False, soft_wrap=True)


def run(main: Callable[[list[str]], None]) -> None:
    """A command: exit code 2 and one line for bad input."""
    torch.set_num_threads(1)
    disable_progress_bar()  # transformers', which would draw over ours
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
