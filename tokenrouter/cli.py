"""The `tokenrouter` command. Each sub-command is a module, imported only when it is asked for."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from tokenrouter.core import InputError

COMMANDS = {
    "serve": ("tokenrouter.server.start", "serve an algorithm's models behind OpenAI's routes"),
    "chat": ("tokenrouter.server.chat", "talk to a server, the text coloured by the model that wrote it"),
    "top": ("tokenrouter.server.top", "watch a server's subservers"),
    "plan": ("tokenrouter.throughput.plan", "predict throughput over the batching thresholds and find the best"),
}
"""Of each command the module, with add_arguments(parser) and run(args) -> exit code, and what it does."""
DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130


class Parser(argparse.ArgumentParser):
    """Leaves it to `main` to report what is wrong, in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command; returns its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        top = Parser(prog="tokenrouter", description="Serving and planning of token-level LLM routing.")
        purposes = "; ".join(f"{name}: {purpose}" for name, (_, purpose) in COMMANDS.items())
        top.add_argument("command", choices=COMMANDS, help=purposes)
        name = top.parse_args(given[:1]).command
        module, purpose = COMMANDS[name]
        command = import_module(module)
        parser = Parser(prog=f"tokenrouter {name}", description=purpose, allow_abbrev=False)
        command.add_arguments(parser)
        code: int = command.run(parser.parse_args(given[1:]))
        return code
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
