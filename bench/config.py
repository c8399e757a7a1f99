"""What a run's resolved configuration may hold; every field is explained in the yaml that declares it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from msgspec import Meta
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tokenrouter import config
from tokenrouter.config import (
    AlgoConfig,
    BatchingConfig,
    EngineConfig,
    HardwareConfig,
    ModelsConfig,
    Natural,
    Positive,
    PositiveFloat,
    Seed,
    Strict,
)
from tokenrouter.core import InputError
from tokenrouter.paths import ROOT

OPEN_SECTIONS = frozenset({"algo", "system"})


class SystemConfig(Strict, kw_only=True, rename={"target": "_target_"}):
    name: str
    target: str
    only: str | None = None
    replicas: Positive = 1
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class OfficialConfig(Strict, kw_only=True):
    like: str | None
    path: str | None
    command: list[str]


class Slo(Strict, kw_only=True, frozen=True):
    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2el_ms: PositiveFloat | None = None


class LoadConfig(Strict, kw_only=True):
    mode: Literal["closed", "poisson", "batch"]
    via: Literal["inproc", "http"]
    concurrency: Positive
    clients: Positive | None = None  # for the systems' options, which refer to it
    num_requests: Positive
    warmup: Natural
    seed: Seed
    stall_s: PositiveFloat
    request_rate: PositiveFloat | None = None
    slo: Slo = Slo()


class LoggerConfig(Strict, kw_only=True):
    kind: Literal["none", "wandb"]
    project: str = ""
    mode: Literal["auto", "online", "offline"] = "auto"


class SamplingConfig(Strict, kw_only=True):
    temperature: Annotated[float, Meta(ge=0, le=100)]
    top_p: Annotated[float, Meta(gt=0, le=1)]
    top_k: Natural
    min_p: Annotated[float, Meta(ge=0, le=1)]
    ignore_eos: bool


Level = Literal["calibrated"] | dict[Literal["llm_token_fraction", "quality"], Annotated[float, Meta(ge=0)]]


class ZooConfig(Strict, kw_only=True):
    """The operating points of bench/zoo.py, by name: on a calibration's curve, and of each algorithm (None: those)."""

    curve: dict[str, Level]
    algos: dict[str, dict[str, dict[str, Any]] | None]


class RunConfig(Strict, kw_only=True):
    algo: AlgoConfig
    workload: dict[str, Any]
    models: ModelsConfig
    engine: EngineConfig
    system: SystemConfig
    batching: BatchingConfig
    load: LoadConfig
    hardware: HardwareConfig
    logger: LoggerConfig
    sampling: SamplingConfig
    official: OfficialConfig | None = None
    zoo: ZooConfig | None = None


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved configuration of a run with these overrides; InputError for one that does not validate."""
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            values: Any = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(explain_composition(error)) from None
    validate(values)
    return dict(values)


def validate(values: Mapping[str, Any]) -> RunConfig:
    """Plain data -> RunConfig; InputError for the first field that is missing, unknown, ill-typed or out of range."""
    run = config.convert(values, RunConfig, OPEN_SECTIONS)
    if (run.load.request_rate is None) == (run.load.mode == "poisson"):
        allowed = "a number > 0" if run.load.mode == "poisson" else "null, as nothing but load=poisson has one"
        raise InputError(
            f"load.request_rate={run.load.request_rate}: allowed with load.mode={run.load.mode} is {allowed}")
    max_tokens = run.workload.get("max_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise InputError(f"workload.max_tokens={max_tokens!r}: allowed is a whole number >= 1, or null")
    return run


def explain_composition(error: Exception) -> str:
    """Hydra's and OmegaConf's own complaints about the command line, as one line."""
    return config.explain_composition(error, RunConfig, OPEN_SECTIONS)
