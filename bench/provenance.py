"""Where a result comes from: a figure without it does not count."""
from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench.plan import Plan
from tokenrouter.cluster.models import revision
from tokenrouter.paths import resolve


def provenance(plan: Plan, command: str | None) -> dict[str, Any]:
    """The provenance of a summary; every field a plain value. `command`: what gave it, None if it was no command.

    `config_hash` stands for all settings that can change a result, `models_hash` for all models of the group, used or
    not, so that algorithms with different roles can be compared.
    """
    sha, dirty = plan.checkout  # not of what may have been edited since
    return {
        "command": command,
        "evidence": evidence(plan.config.engine.kind, plan.config.hardware.link),
        "data_source": plan.workload.data_source,
        "data_version": plan.workload.version,
        "config_hash": config_hash(plan.values),
        "models_hash": _models_hash(plan),
        "git_sha": sha,
        "dirty": dirty,
        "host": platform.node(),
        "cpu": _cpu(),
        "load_average": round(os.getloadavg()[0], 2),  # of the machine, at the end: was it ours alone?
        "gpu": torch.cuda.get_device_name() if plan.config.hardware.device.startswith("cuda") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "engine_version": _version("tokenrouter"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def evidence(engine: str, link: Any) -> str:
    """What figures of this engine, and of this link between the models, are."""
    return "emulated" if engine == "emulated" or link else "measured"


def config_hash(values: Mapping[str, Any]) -> str:
    """Of a resolved configuration."""
    return _digest({name: value for name, value in values.items() if name != "logger"})


def _models_hash(plan: Plan) -> str:
    emulated = plan.config.engine.options if plan.config.engine.kind == "emulated" else None  # these are the models
    found = {
        role: [model.path, None if emulated else revision(str(resolve(model.path)), model.revision), model.dtype]
        for role, model in plan.config.models.roles.items()
    }
    return _digest([found, plan.config.models.load_format, *filter(None, [emulated])])


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def _cpu() -> str:
    """The processor's name, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
