"""An algorithm set up to be tested: its models, prompts, and the parameters at which several models write."""
from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from tokenrouter.cluster.models import load_tokenizer, locate
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec
from tokenrouter.core import Request, SamplingParams
from tokenrouter.engine import load_engine
from tokenrouter.engine.base import Engine, Row
from tokenrouter.engine.routers import context_of
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, RequestView, StepResult
from tokenrouter.sampling import draw_of, sample
from zoo.harness import InProcessCluster
from zoo.reference import Reference
from zoo.setup import Setup
from zoo.walk import Record

PAGE = 16
TEXTS = "zoo/models/small"  # whose tokenizer gives the tokens of models of random weights a text
THRESHOLDS = (0.6, 0.75, 0.5, 0.3, 0.85, 0.15, 0.05, 0.01, 0.95)


def dummy_config(vocab_size: int, eos_token_id: int | None = None, **sizes: int) -> Qwen3Config:
    """A tiny Qwen3 config; `sizes` override."""
    values = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512, **sizes,
    }
    return Qwen3Config(
        vocab_size=vocab_size, eos_token_id=eos_token_id, bos_token_id=None, pad_token_id=None,
        tie_word_embeddings=False, **values,
    )


def dummy(seed: int, vocab_size: int = 64, eos_token_id: int | None = None, **sizes: int) -> Qwen3ForCausalLM:
    """Random weights, large enough that greedy tokens vary and logits are well apart."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(dummy_config(vocab_size, eos_token_id, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


class Case:
    """`mixed`: request parameters at which more than one model writes. `alone[role]`: those at which that role's
    model writes everything. `tokenizer`: of the models, a folder or hub id."""

    def __init__(self, algorithm: Algorithm, paths: Sequence[str], prompts: Sequence[Sequence[int]], *,
                 mixed: Mapping[str, Any] | None = None, alone: Mapping[int, Mapping[str, Any]] | None = None,
                 max_tokens: int = 16, tokenizer: str = TEXTS) -> None:
        self.algorithm, self.paths, self.max_tokens, self._tokenizer = algorithm, list(paths), max_tokens, tokenizer
        self.prompts = [list(prompt) for prompt in prompts]
        self.alone = dict(alone_settings(algorithm) if alone is None else alone)
        self._given, self._engines = mixed, dict[int, list[Engine]]()

    @classmethod
    def over_random_models(cls, algorithm: Algorithm, folder: Path, **options: Any) -> Case:
        """Models of random weights, one vocabulary and different sizes, and prompts of random ids."""
        paths, rng = [], random.Random(5)
        for seed, role in enumerate(algorithm.roles):
            paths.append(str(folder / role))
            sizes = ({}, {"num_hidden_layers": 3}, {"hidden_size": 48})[seed % 3]
            dummy(seed + 1, **sizes).save_pretrained(paths[-1])
        prompts = [[rng.randrange(64) for _ in range(length)] for length in (1, 17, 33)]
        return cls(algorithm, paths, prompts, **options)

    @classmethod
    def compose(cls, algo: str, models: str | None, folder: Path, overrides: Sequence[str] = (),
                **options: Any) -> Case:
        """conf/algo's choice over conf/models' choice, or over random models where that is None."""
        setup = Setup.compose([f"algo={algo}", *([f"models={models}"] if models else []), *overrides])
        if models is None:
            return cls.over_random_models(setup.algorithm, folder, **options)
        paths = [setup.model_path(role) for role in setup.algorithm.roles]
        if setup.config["models"]["embedded"]:
            prompts = [setup.prompt(task) for task in setup.problems("calibration", 3)[1]]
        else:
            rng = random.Random(5)
            prompts = [[rng.randrange(len(setup.tokenizer)) for _ in range(length)] for length in (1, 17, 33)]
        return cls(setup.algorithm, paths, prompts, tokenizer=setup.config["models"]["tokenizer"], **options)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer("models.tokenizer", locate("models.tokenizer", self._tokenizer))

    @cached_property
    def spec(self) -> AlgorithmSpec:
        a = self.algorithm
        return AlgorithmSpec(name=a.name, roles=list(a.roles), routers=a.routers, entry=a.entry,
                             models=list(range(len(a.roles))))

    @cached_property
    def reference(self) -> Reference:
        return Reference.load(self.algorithm, self.paths)

    @cached_property
    def mixed(self) -> dict[str, Any]:
        """As given, or the first threshold at which the models take turns."""
        if self._given is not None:
            return dict(self._given)
        if not any(param.sends for param in self.algorithm.params.values()):
            return {}
        shares = {}
        for threshold in THRESHOLDS:
            records = [self.reference.decode(prompt, self.sampling(), {"threshold": threshold})
                       for prompt in self.prompts[:2]]
            written = [role for record in records for role in record.token_models]
            shares[threshold] = min(written.count(0), len(written) - written.count(0)) / len(written)
            if shares[threshold] >= 0.2:
                break
        return {"threshold": max(shares, key=lambda threshold: shares[threshold])}

    def sampling(self, seed: int = 0, **fields: Any) -> SamplingParams:
        """Greedy, unless `fields` say otherwise."""
        return SamplingParams(**{"seed": seed, "max_tokens": self.max_tokens, **fields})

    def jobs(self) -> list[Record]:
        """Requests, not yet decoded: each prompt greedily and sampled."""
        made = []
        for i, prompt in enumerate(self.prompts):
            for temperature in (0.0, 0.8):
                sampling = self.sampling(7 * i + 1, temperature=temperature, top_p=0.95)
                made.append(Record(prompt, sampling, dict(self.mixed)))
        return made

    def truth(self, job: Record, eos: frozenset[int] | None = None) -> Record:
        """What the reference makes of a request; `eos` replaces the models' own ends of sequence."""
        own, self.reference.eos = self.reference.eos, self.reference.eos if eos is None else eos
        try:
            return self.reference.decode(job.prompt_ids, job.sampling, job.params)
        finally:
            self.reference.eos = own

    @cached_property
    def truths(self) -> list[Record]:
        """Of all `jobs`."""
        return [self.truth(job) for job in self.jobs()]

    @property
    def tight(self) -> int:
        """A KV pool, in tokens, for two requests of the longest kind."""
        return 2 * PAGE * -(-(max(map(len, self.prompts)) + self.max_tokens) // PAGE)

    def engines(self, capacity: int = 8192) -> list[Engine]:
        if capacity not in self._engines:
            self._engines[capacity] = [load_engine("torch", path=path, capacity_tokens=capacity, page_size=PAGE)
                                       for path in self.paths]
        return self._engines[capacity]

    def cluster(self, seed: int = 0, *, capacity: int = 8192, B: Sequence[int] | None = None,
                eos: frozenset[int] | None = None) -> InProcessCluster:
        batching = BatchingSpec(policy="fixed", B=list(B or [1] * len(self.paths)), max_wait_s=1e9)
        return InProcessCluster([self.spec], self.engines(capacity), seed=seed, batching=batching, chunk_tokens=PAGE,
                                eos_token_ids=eos)

    def served(self, cluster: InProcessCluster, jobs: Iterable[Record]) -> list[Record]:
        """The requests through a cluster, in which nothing may be left of them."""
        rids = []
        for job in jobs:
            rids.append((cluster.submit(job.prompt_ids, job.sampling, params=job.params), msgspec.structs.replace(job)))
            for _ in range(cluster.rng.randrange(12)):
                cluster.turn()
        cluster.run()
        cluster.check_idle()
        return [cluster.collect(rid, record) for rid, record in rids]

    def router(self, role: int) -> BaseRouter:
        made = self.algorithm.router(self.algorithm.roles[role])
        made.setup(context_of(self.engines()[role]))
        return made

    def result(self, role: int, *, at_once: bool = True) -> StepResult:
        """What a role's router would see at each position of two answers, computed by one extend or token by token."""
        engine, requests, logits, hidden = self.engines()[role], [], [], []
        for number, record in enumerate(self.truths[:2]):
            ids, length = record.prompt_ids + record.token_ids[:-1], len(record.prompt_ids)
            counts = [len(ids)] if at_once else [length, *[1] * (len(ids) - length)]
            rid, done = f"case-{number}", 0
            engine.open(rid, ids[:1])  # one id: nothing is adopted from the cache, all is computed
            for count in counts:
                assert engine.allocate(rid, count)
                output = engine.step([Row(rid, ids[done : done + count], len(record.token_ids) if at_once else 1)])
                logits.append(output.logits.clone())
                hidden.append(output.hidden.clone())
                done += count
            engine.free(rid)
            for t in range(len(record.token_ids)):
                requests.append(Request(
                    f"{rid}-{t}", 0, role, 0, record.sampling, self.algorithm.parse(record.params),
                    ids=ids[: length + t], prompt_len=length, known=[length] * len(self.paths),
                    authors=record.token_models[:t]))
        stacked = torch.cat(logits)
        draws = [draw_of(request, ()) for request in requests]
        tokens = sample(stacked, draws, stacked.shape[1])
        views = [RequestView(*each) for each in zip(requests, tokens.tolist(), draws, strict=True)]
        return StepResult(tokens, LogitsOutput(stacked, torch.cat(hidden)), views)


def alone_settings(algorithm: Algorithm) -> dict[int, dict[str, Any]]:
    """By the parameters that are declared: a threshold's words, or weights of which all but one are 0."""
    count = len(algorithm.roles)
    for param in algorithm.params.values():
        if param.sends:
            return {0: {param.name: "never"}, count - 1: {param.name: "always"}}
        if param.per_role:
            return {role: {param.name: [int(role == r) for r in range(count)]} for role in range(count)}
    return {}
