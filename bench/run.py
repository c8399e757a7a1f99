"""The main job: python bench/run.py algo=r2r workload=aime [group=choice] [group.field=value]

Exit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted.
"""
from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def run(config: DictConfig, folder: Path, overrides: Sequence[str]) -> int:
    """One run; returns its exit code. Every error is one line on standard error."""
    from bench.progress import waiting
    from tokenrouter.core import InputError

    out, err = Console(), Console(stderr=True)
    try:
        with waiting(err, "libraries"):
            from bench.driver import execute  # heavy imports, which a mistyped override need not wait for

        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        trace = execute(values, folder, out, err, shlex.join(["python", "bench/run.py", *overrides]))
        if isinstance(trace.stopped, KeyboardInterrupt):
            raise trace.stopped
        return FAILED if trace.stopped or not any(record.completed for record in trace.records) else DONE
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if nothing is in it
        return BAD_INPUT
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def main() -> int:
    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")
    def job(config: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        codes.append(run(config, Path(hydra_config.runtime.output_dir), hydra_config.overrides.task))
        if codes[-1] == INTERRUPTED:
            raise KeyboardInterrupt  # the other runs of a sweep too

    def terminated(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra's errors reach us as exceptions, which become one line
    try:
        job()
    except (HydraException, OmegaConfBaseException) as error:
        from bench.config import explain_composition

        print(f"error: {explain_composition(error)}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:  # before the run: its folder could not be made
        print(f"error: hydra.run.dir={error.filename}: {error.strerror}; allowed is a folder that can be written",
              file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    return max(codes, default=DONE)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not bench/, whose modules would hide others of the same names
    sys.exit(main())
