"""What a command works on: from conf/ the algorithm, the models and the problems.

`algo=`, `models=` and `workload=` choose a file of conf/, `group.field=value` overrides a field of it.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from transformers import PreTrainedTokenizerBase

from tokenrouter.cluster.models import check_vocabularies, load_tokenizer, locate, prompt_ids
from tokenrouter.core import InputError
from tokenrouter.engine import load_engine
from tokenrouter.engine.base import Engine
from tokenrouter.interface import Algorithm
from tokenrouter.paths import ROOT
from zoo.cli import GROUPS
from zoo.tasks.answers import check_kind, extract
from zoo.tasks.grade import Grader
from zoo.tasks.rows import Task
from zoo.tasks.workload import Workload, load_workload
from zoo.walk import Record


@dataclass
class Setup:
    """A composed configuration: `config` has the groups of conf/, plain and resolved."""

    config: dict[str, Any]
    seed: int = 0
    _graders: dict[str, Grader] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def compose(cls, overrides: Sequence[str], seed: int = 0) -> Setup:
        try:
            with initialize_config_dir(str(ROOT / "conf"), version_base=None):
                composed = compose("config", list(overrides))
            config = {group: OmegaConf.to_container(composed[group], resolve=True) for group in GROUPS}
        except (HydraException, OmegaConfBaseException) as error:
            raise InputError(" ".join(str(error).split())) from None
        return cls(config, seed)

    @property
    def algorithm(self) -> Algorithm:
        algo = self.config["algo"]
        return Algorithm(algo["name"], tuple(algo["roles"]), algo["roles"], algo["entry"])

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer("models.tokenizer", locate("models.tokenizer", self.config["models"]["tokenizer"]))

    def model_path(self, role: str) -> str:
        roles = self.config["models"]["roles"]
        if role not in roles:
            raise InputError(f"models={self.config['models']['name']}: has no role {role!r}; allowed is one with it")
        return locate(f"models.roles.{role}.path", roles[role]["path"])

    def revision(self, role: str) -> str | None:
        """Of a model on the hub."""
        revision: str | None = self.config["models"]["roles"][role]["revision"]
        return revision

    def model_name(self, role: str) -> str:
        return Path(self.model_path(role)).name

    def check_vocabularies(self, roles: Iterable[str] | None = None) -> None:
        """InputError unless the models of these roles (None: the algorithm's) map the same tokens to the same ids."""
        named = [("models.tokenizer", self.tokenizer)]
        for role in self.algorithm.roles if roles is None else roles:
            field = f"models.roles.{role}.path"
            named.append((field, load_tokenizer(field, self.model_path(role), self.revision(role))))
        check_vocabularies(named)

    def engine(self, role: str, sequences: int, max_tokens: int) -> Engine:
        """The role's model, with room for that many sequences of that many tokens and as much again to reuse."""
        model = self.config["models"]["roles"][role]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return load_engine("torch", path=self.model_path(role), revision=self.revision(role), dtype=model["dtype"],
                           device=device, capacity_tokens=2 * sequences * max_tokens)

    def problems(self, split: str, count: int) -> tuple[Workload, list[Task]]:
        """`count` problems: of that split of the generated ones, or of the workload's file."""
        embedded, workload = self.config["models"]["embedded"], self.config["workload"]
        if not embedded and workload["path"] is None:
            raise InputError(f"workload.path=null: allowed is a file of problems set apart for {split}")
        if embedded:
            workload = {**workload, "embedded": {**workload["embedded"], "split": split, "size": count}}
        loaded = load_workload(workload, embedded=embedded, n=count, seed=self.seed)
        return loaded, loaded.problems[:count]

    def prompt(self, task: Task) -> list[int]:
        return prompt_ids(self.config["models"]["tokenizer"], self.tokenizer, task.prompt_messages)

    def answer(self, kind: str, record: Record) -> str | None:
        """The answer that a decoded request gives."""
        return extract(check_kind(kind), str(self.tokenizer.decode(record.token_ids, skip_special_tokens=True)))

    def same(self, kind: str, answer: str | None, other: str | None) -> bool:
        """Whether two answers agree; a missing one agrees with nothing, nor do those that take too long to compare."""
        if kind not in self._graders:
            self._graders[kind] = Grader(kind, workers=1)
        return bool(self._graders[kind].same([(answer, other)])[0])


