"""What a server's resolved configuration may hold (conf/server.yaml explains it), and what is built from it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from msgspec import Meta
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tokenrouter.cluster.build import hardware_spec, model_specs
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec
from tokenrouter.config import (
    AlgoConfig,
    BatchingConfig,
    EngineConfig,
    HardwareConfig,
    ModelsConfig,
    Natural,
    Positive,
    PositiveFloat,
    Strict,
    convert,
    explain_composition,
)
from tokenrouter.core import InputError
from tokenrouter.paths import ROOT
from tokenrouter.server.routes import Routes

OPEN_SECTIONS = frozenset({"algo"})
STAY = {"_target_": "tokenrouter.interface.StayRouter"}


class ServerSettings(Strict, kw_only=True):
    host: str
    port: Annotated[int, Meta(ge=0, le=65535)]
    algorithms: list[str]
    thresholds: list[float | str]
    api_keys: list[str]
    admin_key: str | None
    max_requests: Positive
    retry_after_s: Natural
    timeout_s: PositiveFloat
    drain_s: PositiveFloat
    max_body_mb: PositiveFloat
    max_choices: Positive
    observe_s: PositiveFloat | None
    log: bool


class ClusterSettings(Strict, kw_only=True):
    on_death: Literal["fail", "restart"]
    max_restarts: Natural


class SamplingDefaults(Strict, kw_only=True):
    temperature: Annotated[float, Meta(ge=0, le=100)]
    top_p: Annotated[float, Meta(gt=0, le=1)]
    top_k: Natural
    min_p: Annotated[float, Meta(ge=0, le=1)]


class ServeConfig(Strict, kw_only=True):
    algo: AlgoConfig
    models: ModelsConfig
    engine: EngineConfig
    batching: BatchingConfig
    hardware: HardwareConfig
    server: ServerSettings
    cluster: ClusterSettings
    sampling: SamplingDefaults


def read(overrides: Sequence[str]) -> tuple[ServeConfig, ClusterSpec]:
    """Compose conf/server.yaml with Hydra's overrides. Raises InputError; starts nothing."""
    config = _compose(overrides)
    if config.engine.kind == "emulated":
        raise InputError("engine=emulated: allowed is an engine whose models write text")
    if config.batching.launch_log and config.server.observe_s is not None:
        raise InputError("batching.launch_log=true: allowed with server.observe_s=null, as each observation would "
                         "carry all of it")
    given = config.engine.options.get("server_args")
    machines = given.get("nnodes", 1) if isinstance(given, dict) else 1
    if machines != 1 and config.cluster.on_death == "restart":
        raise InputError(f"cluster.on_death=restart: allowed with engine.options.server_args.nnodes={machines} is "
                         "fail, as the other machines' processes end with the one here")
    algorithms = [config.algo]
    for name in config.server.algorithms:
        algorithms.append(_compose([*(o for o in overrides if not o.startswith("algo=")), f"algo={name}"]).algo)
    spec = cluster_spec(config, algorithms)
    Routes((algorithm.build() for algorithm in spec.algorithms), config.server.thresholds)  # refuses what none can be
    return config, spec


def cluster_spec(config: ServeConfig, algorithms: Sequence[AlgoConfig]) -> ClusterSpec:
    """One subserver for each role of any of the algorithms, and beside these each model alone."""
    roles = list(dict.fromkeys(role for algorithm in algorithms for role in algorithm.roles))
    models = model_specs(config.models, roles, config.algo.name, config.engine, config.hardware.device)
    served = [AlgorithmSpec(name=a.name, roles=list(a.roles), routers=a.roles, entry=a.entry,
                            models=[roles.index(role) for role in a.roles]) for a in algorithms]
    names = {a.name for a in algorithms}
    for name, index in (("slm_only", 0), ("llm_only", len(config.algo.roles) - 1)):
        if name not in names:
            role = list(config.algo.roles)[index]
            served.append(AlgorithmSpec(name=name, roles=[role], routers={role: STAY}, entry=role,
                                        models=[roles.index(role)]))
    spec = ClusterSpec(models=models, algorithms=served, batching=config.batching, engine=config.engine,
                       hardware=hardware_spec(config.hardware, len(models)))
    spec.check()
    return spec


def _compose(overrides: Sequence[str]) -> ServeConfig:
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            composed = compose("server", list(overrides))
        values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(explain_composition(error, ServeConfig, OPEN_SECTIONS)) from None
    return convert(values, ServeConfig, OPEN_SECTIONS)
