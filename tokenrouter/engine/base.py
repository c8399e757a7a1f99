"""What a subserver asks of an engine. It never asks which engine it has."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch

# A router's score: (a NamedTuple of tensors with a row a request, or None; parameters by name, [B, ...]) -> [B].
Score = Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is fixed about a loaded model. Sizes in bytes; `vocab_size` is the width of its logits."""

    name: str
    vocab_size: int
    hidden_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    num_params: int
    dtype: str
    weight_bytes: int
    bytes_per_token: int
    engine: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """KV room in tokens. `free` includes what only the prefix cache holds, as that can be reclaimed at once."""

    total: int
    free: int
    page_size: int


@dataclass(slots=True)
class Row:
    """One sequence's part in a step: append `token_ids` (k >= 1) to its KV.

    Asks for the logits and hidden states of its last `num_logits` positions (0 in the middle of a prompt).
    """

    rid: str
    token_ids: Sequence[int]
    num_logits: int = 1


@dataclass(slots=True)
class EngineOutput:
    """`logits` [R, V] raw fp32, `hidden` [R, H] (last layer after the final norm), R = sum of num_logits,
    in the order of the rows. On an asynchronous engine they are still being computed: what is queued on the device
    runs behind them, and reading them waits. `finish` waits too, and answers the seconds in model execution proper,
    without batch assembly.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    finish: Callable[[], float]


@dataclass(slots=True)
class EngineCounters:
    """Since the start: what the tests of resume-is-an-append and the metrics read."""

    prefix_lookups: int = 0
    prefix_hit_tokens: int = 0
    pages_allocated: int = 0
    pages_evicted: int = 0  # taken back from the prefix cache
    steps: int = 0
    tokens: int = 0
    graph_decodes: int = 0  # steps from graphs, and routers' scores; what has none counts as eager
    graph_extends: int = 0
    eager_steps: int = 0
    graph_scores: int = 0
    eager_scores: int = 0

    def reset(self) -> None:
        for counter in fields(self):
            setattr(self, counter.name, 0)


class Engine(Protocol):
    """One model over its own KV pool. Sequences are named by request id.

    Life of a sequence: `open` -> (`allocate` -> `step`)* with `truncate` at will -> `free`. `asynchronous`: a step is
    queued on a device that computes by itself, so that there is time for other work until it is finished.
    """

    info: ModelInfo
    device: torch.device
    asynchronous: bool
    counters: EngineCounters

    def capacity(self) -> Capacity: ...

    def open(self, rid: str, ids: Sequence[int]) -> int:
        """Begin a sequence and adopt what the prefix cache has of `ids`; returns how many ids are in KV.

        Always less than len(ids), so that a step has a position to give logits of.
        """

    def allocate(self, rid: str, num_tokens: int) -> bool:
        """Make room for `num_tokens` beyond the sequence's KV, so that the next step cannot fail for want of it.

        Reclaims pages that only the prefix cache holds. False, and nothing changed, if there is no room.
        """

    def step(self, rows: Sequence[Row]) -> EngineOutput:
        """One forward pass over a ragged batch; KV grows by each row's token_ids.

        Each row's room must have been allocated since its last truncate. Outputs are inference tensors.
        """

    def truncate(self, rid: str, length: int) -> None:
        """Forget the sequence's KV beyond `length` tokens."""

    def free(self, rid: str, ids: Sequence[int] = ()) -> None:
        """End the sequence. Full pages of `ids` (its committed tokens) stay in the prefix cache until reclaimed."""

    def kv_len(self, rid: str) -> int: ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[B] -> [B, H], the model's input embeddings, for routers that look at them."""

    def graphed(self, score: Score) -> Score:
        """The same score, from graphs if this engine has them. It must be pure, and each row depend on its own row."""

    def check(self, live: Iterable[str]) -> None:
        """Raise AssertionError unless every page is owned by exactly the live sequences or the prefix cache."""

    def flush_cache(self) -> None:
        """Drop the prefix cache."""
