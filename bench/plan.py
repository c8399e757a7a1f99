"""From a checked configuration to everything a run needs, with nothing started."""
from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from transformers import PreTrainedTokenizerBase

from bench.checkout import checkout
from bench.config import RunConfig, validate
from bench.records import Job
from tokenrouter.cluster.build import hardware_spec, model_specs, shared_tokenizer
from tokenrouter.cluster.models import context_length, prompt_ids
from tokenrouter.cluster.placement import plan_capacity
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec
from tokenrouter.config import EngineConfig
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.engine import emulated
from zoo.tasks.trajectories import Tokenize
from zoo.tasks.workload import Workload, load_workload


@dataclass(frozen=True)
class Plan:
    """`values`: the resolved configuration as it was given. `jobs` are measured, `warmup` ones precede them.
    `checkout`: of the code that does so (bench/checkout.py)."""

    values: Mapping[str, Any]
    config: RunConfig
    cluster: ClusterSpec
    workload: Workload
    tokenizer: PreTrainedTokenizerBase | None  # None: tokens stand for no text
    warmup: list[Job]
    jobs: list[Job]
    checkout: tuple[str | None, bool | None]

    @property
    def roles(self) -> list[str]:
        return roles_of(self.config)


def prepare(values: Mapping[str, Any], *, here: bool = True) -> Plan:
    """Check a resolved configuration, read data and tokenizers. Raises InputError; starts no process.

    `here`: the run is to be made, so that this machine must have what it takes.
    """
    config = validate(values)
    cluster = cluster_spec(config, values)
    if here:
        cluster.check_machine()
    context, capacity = min(_contexts(config, cluster)), min(plan_capacity(cluster))
    tokenizer = _tokenizer(config, cluster)
    load = config.load
    tokenize = None if tokenizer is None else partial(prompt_ids, str(config.models.tokenizer), tokenizer)
    workload = load_workload(
        config.workload, embedded=config.models.embedded, n=load.num_requests, seed=load.seed, tokenize=tokenize)
    count = load.num_requests + load.concurrency * load.warmup
    jobs = [_job(config, workload, tokenize, i) for i in range(count)]
    _check_ids(jobs, emulated.VOCAB_SIZE if tokenizer is None else len(tokenizer))
    _check_lengths(jobs, context)
    _check_room(jobs, capacity, config.engine)
    return Plan(values, config, cluster, workload, tokenizer, jobs[load.num_requests :], jobs[: load.num_requests],
                checkout())


def cluster_spec(config: RunConfig, values: Mapping[str, Any]) -> ClusterSpec:
    """The subservers of a run: one for each role of the algorithm, in the order of the roles.

    A system of one model alone (`system.only`) has that role's, as often as `system.replicas` says, each under an
    algorithm of its own.
    """
    roles = roles_of(config)
    models = model_specs(config.models, roles, config.algo.name, config.engine, config.hardware.device)
    routers, entry = config.algo.roles, config.algo.entry
    if config.system.only is not None:
        routers, entry = {roles[0]: {"_target_": "tokenrouter.interface.StayRouter"}}, roles[0]
    replicas = config.system.replicas
    if replicas > 1 and len(roles) > 1:
        raise InputError(f"system.replicas={replicas}: allowed is 1 for an algorithm of {len(roles)} models")
    algorithms = [
        AlgorithmSpec(name=replica_name(config.algo.name, copy), roles=roles, routers=routers, entry=entry,
                      models=list(range(copy * len(roles), (copy + 1) * len(roles))))
        for copy in range(replicas)
    ]
    models *= replicas
    spec = ClusterSpec(
        models=models, algorithms=algorithms, batching=config.batching, engine=config.engine,
        hardware=hardware_spec(config.hardware, len(models)))
    try:
        spec.check()
    except InputError as error:  # a router names its own parameter: here it is a field of algo
        field = re.match(r"\w*", str(error))
        raise InputError(f"algo.{error}" if field and field[0] in values["algo"] else str(error)) from None
    return spec


def roles_of(config: RunConfig) -> list[str]:
    """The roles that a run has models for."""
    return [config.system.only] if config.system.only is not None else list(config.algo.roles)


def replica_name(algorithm: str, copy: int) -> str:
    return f"{algorithm}#{copy}" if copy else algorithm


def _contexts(config: RunConfig, cluster: ClusterSpec) -> list[int]:
    if config.engine.kind == "emulated":
        return [emulated.parse_options(config.engine.options).context_length]
    return [context_length(f"models.roles.{m.name}.path", m.path, m.revision) for m in cluster.models]


def _tokenizer(config: RunConfig, cluster: ClusterSpec) -> PreTrainedTokenizerBase | None:
    if config.models.tokenizer is None:
        if config.workload.get("kind") != "random":
            raise InputError("models.tokenizer=None: allowed is a folder or hub id, as the prompts of "
                             f"workload={config.workload['name']} are text; or workload=random")
        return None
    return shared_tokenizer(config.models, cluster.models)


def _job(config: RunConfig, workload: Workload, tokenize: Tokenize | None, index: int) -> Job:
    task, sample = workload.draw(index)
    prompt: Any = task.prompt_ids
    if prompt is None and tokenize is not None:
        try:
            prompt = tokenize(task.prompt_messages)
        except InputError as error:
            raise InputError(f"problem {task.id}: {error}") from None
    fields = msgspec.to_builtins(config.sampling)
    fields["ignore_eos"] |= task.ignore_eos
    sampling = SamplingParams(
        seed=request_seed(config.load.seed, index), max_tokens=task.max_tokens or workload.max_tokens, signals=True,
        **fields)
    return Job(task, sample, list(prompt), sampling)


def request_seed(seed: int, index: int) -> int:
    """The sampling seed of request `index`: a function of these two alone."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest(), "big") >> 1


def _check_ids(jobs: list[Job], vocab_size: int) -> None:
    largest = max(max(job.prompt_ids) for job in jobs)
    if largest >= vocab_size:
        raise InputError(f"prompts: hold the token id {largest}; allowed is below {vocab_size} (workload.vocab_size)")


def _check_lengths(jobs: list[Job], context: int) -> None:
    for job in jobs:
        room = context - len(job.prompt_ids)
        if room < 1:
            raise InputError(f"prompt of problem {job.task.id}={len(job.prompt_ids)} tokens: "
                             f"allowed is at most {context - 1}, as the models' context is {context}")
        if job.sampling.max_tokens > room:
            raise InputError(f"workload.max_tokens={job.sampling.max_tokens}: allowed is at most {room}, as the prompt "
                             f"of problem {job.task.id} has {len(job.prompt_ids)} tokens and the models' context is "
                             f"{context}")


def _check_room(jobs: list[Job], capacity: int, engine: EngineConfig) -> None:
    """`capacity`: of the KV pool, in tokens."""
    job = max(jobs, key=lambda job: len(job.prompt_ids) + job.sampling.max_tokens)
    prompt, answer = len(job.prompt_ids), job.sampling.max_tokens
    if prompt + answer > capacity:
        given = f"memory_gb={engine.memory_gb:g}"
        if engine.capacity_tokens is not None:
            given = f"capacity_tokens={engine.capacity_tokens}"
        raise InputError(f"engine.{given}: is room for {capacity} tokens of KV; allowed is room for {prompt + answer}, "
                         f"as the prompt of problem {job.task.id} has {prompt} and workload.max_tokens is {answer}")
