"""What the zoo's commands share: `key=value` arguments, a progress bar, and how errors end them."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar

from tokenrouter.core import InputError

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


def progress_bar() -> Progress:
    """A bar with count, time gone and time left; silent where nobody watches."""
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                    TimeRemainingColumn(), disable=not sys.stderr.isatty())


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
