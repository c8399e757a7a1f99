"""The truth: one request, plain transformers models, no KV cache, no batching, no scheduler.

Every engine, batch, schedule and launch threshold must give the tokens that `Reference.decode` gives, each written by
the same model. Two computations of one number differ in their last bits, so a divergence is excused where the
reference itself was nearly undecided: see `Record.margins` and `compare`. How a token is drawn is in
tokenrouter/proposals.py, what becomes of it in zoo/walk.py; these three are all that it takes to read it.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tokenrouter.core import InputError, SamplingParams
from tokenrouter.engine.torch.load import context_length, eos_token_ids
from tokenrouter.interface import Algorithm, LogitsOutput, ModelContext, StepResult
from tokenrouter.sampling import Draw, Purpose, adjusted, draw_of, probabilities, uniform
from zoo.walk import Record, Walk

TOLERANCE = 1e-4

# (role, ids) -> logits [1, V] and hidden states [1, H] after the last of the ids
Forward = Callable[[int, list[int]], tuple[torch.Tensor, torch.Tensor]]


class Verdict(NamedTuple):
    """`position`: the first output token at which the two part. `margin`: the reference's own there."""

    kind: Literal["equal", "excused", "diverged"]
    position: int | None = None
    margin: float | None = None
    detail: str = ""


class Reference:
    """An algorithm over one model a role, `models[role]`, in fp32.

    Ids from `vocab_size` on, unknown to some of the models, are never drawn; by default the narrowest model's width.
    """

    def __init__(
        self, algorithm: Algorithm, models: Sequence[PreTrainedModel], vocab_size: int | None = None
    ) -> None:
        if len(models) != len(algorithm.roles):
            raise InputError(f"models: {len(models)} given; allowed is one for each of {list(algorithm.roles)}")
        self.algorithm, self.models = algorithm, [model.train(False) for model in models]
        self.vocab_size = vocab_size or min(model.config.vocab_size for model in models)
        self.context = min(context_length(model.config) for model in models)
        self.eos = frozenset(token for model in models for token in eos_token_ids(model))
        self.routers = [algorithm.router(role) for role in algorithm.roles]
        for router, model in zip(self.routers, models, strict=True):
            router.setup(ModelContext(
                model.device, model.config.vocab_size, model.config.hidden_size, eos_token_ids(model),
                model.get_input_embeddings(),
            ))

    @classmethod
    def load(cls, algorithm: Algorithm, paths: Sequence[str], revisions: Sequence[str | None] = ()) -> Reference:
        """From folders or hub ids, one a role; `revisions`: of these, without which it is the hub's newest."""
        return cls(algorithm, [
            AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=torch.float32)
            for path, revision in zip(paths, revisions or [None] * len(paths), strict=True)])

    def decode(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, params: Mapping[str, Any] | None = None
    ) -> Record:
        """Decode one request. `params`: the algorithm's parameters that come with it, as a client spells them."""

        def forward(role: int, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
            logits, hidden = self._pass(role, ids)
            return logits[-1:], hidden[-1:]

        return self._walk(Record(list(prompt_ids), sampling, dict(params or {})), forward)

    def verify(self, record: Record) -> Verdict:
        """Check a finished record by one teacher-forced pass a model: every token, every route, every proposal that
        was discarded on the way, and why it ended."""
        ids = record.prompt_ids + record.token_ids
        passes = cache(lambda role: self._pass(role, ids))

        def forward(role: int, prefix: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
            on_the_way = prefix == ids[: len(prefix)]  # else it goes on with drafts that were rejected
            logits, hidden = passes(role) if on_the_way else self._pass(role, prefix)
            return logits[len(prefix) - 1 : len(prefix)], hidden[len(prefix) - 1 : len(prefix)]

        again = Record(record.prompt_ids, record.sampling, record.params)
        return compare(record, self._walk(again, forward, follow=record.token_ids))

    @torch.inference_mode()
    def _pass(self, role: int, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """[T] ids -> [T, V] logits and [T, H] hidden states: what enters the output head."""
        model, seen = self.models[role], []
        hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
        finally:
            hook.remove()
        return logits[0].float(), seen[0][0].float()

    @torch.inference_mode()
    def _walk(self, record: Record, forward: Forward, follow: Sequence[int] | None = None) -> Record:
        """Decode into `record`, one proposal a turn; with `follow`, only as long as those are the tokens."""
        walk = Walk(self.algorithm, self.routers, record, eos=self.eos, context=self.context)
        undecided = math.inf  # the least margin since the last accepted token, that token's route included
        while record.finish_reason is None and (
            follow is None or record.token_ids == follow[: len(record.token_ids)]
        ):
            outputs = [forward(walk.role, prefix) for prefix in walk.prefixes]
            logits, hidden = (torch.cat(parts) for parts in zip(*outputs, strict=True))
            router, drafts = walk.router, list(walk.request.drafts)
            draws = [draw_of(walk.request, self.eos, drafted) for drafted in walk.request.asked]
            proposals = walk.propose(logits, self.vocab_size)
            view, last = proposals.views[0], proposals.rows
            seen = hidden[last] if "hidden_states" in router.needs else None
            result = StepResult(proposals.tokens, LogitsOutput(logits[last], seen), [view], self.vocab_size)
            destination = int(router.route(result)[0])

            routed = float(router.margin(result)[0]) if hasattr(router, "margin") else math.inf
            cut = logits[:, : self.vocab_size]
            if len(outputs) > 1 and hasattr(router, "verify_margin"):
                drawn = router.verify_margin(view, drafts, cut, draws)
            else:
                drawn = min(sample_margin(*each) for each in zip(cut, draws, view.proposal, strict=False))
            undecided = min(undecided, routed, drawn)
            accepted = walk.settle(view, destination)
            record.margins += [undecided] * len(accepted)
            if accepted:
                undecided = routed  # where a token is kept, its route decides who writes the next
        return record


def compare(record: Record, reference: Record, tolerance: float = TOLERANCE) -> Verdict:
    """Whether `record` is what `reference` says, token by token and model by model."""
    pairs = [list(zip(r.token_ids, r.token_models, strict=True)) for r in (record, reference)]
    for position, (got, true) in enumerate(zip(*pairs, strict=False)):
        if got != true:
            margin = reference.margins[position]
            kind: Literal["excused", "diverged"] = "excused" if margin < tolerance else "diverged"
            return Verdict(kind, position, margin, f"(token, model) {got}, reference {true}")
    for name in ("finish_reason", "handoffs", "discarded"):
        got, true = getattr(record, name), getattr(reference, name)
        if got is not None and got != true:
            return Verdict("diverged", min(map(len, pairs)), None, f"{name} {got}, reference {true}")
    if len(pairs[0]) != len(pairs[1]):
        return Verdict("diverged", min(map(len, pairs)), None, f"{len(pairs[0])} tokens, reference {len(pairs[1])}")
    return Verdict("equal")


def sample_margin(logits: torch.Tensor, draw: Draw, token: int) -> float:
    """How far [V] `logits` are from giving another token than `token`: a difference of logits if greedy; else of
    probability mass between the draw and the next token's share, or to the cut of one of the filters."""
    params, logits = draw.params, adjusted(logits[None], [draw])[0]
    if params.temperature == 0:
        first, second = logits.topk(2).values
        return float(first - second)
    return min(share_margin(probabilities(logits[None], [params])[0], draw, token), filter_margin(logits, params))


def share_margin(probs: torch.Tensor, draw: Draw, token: int) -> float:
    """How far the draw from [V] `probs` was from drawing another token than `token`, in probability mass."""
    cdf = probs.cumsum(0)
    target = uniform(draw.params.seed, draw.position, draw.role, Purpose.SAMPLE) * cdf[-1]
    return min(float(cdf[token] - target), float(target - (cdf[token] - probs[token])))


def filter_margin(logits: torch.Tensor, params: SamplingParams) -> float:
    """How far [V] `logits` are from another set of tokens that pass top-k, top-p and min-p.

    A token at the edge of top-k or min-p is in or out by the ratio of two probabilities, at that of top-p by a mass.
    """
    margins = [math.inf]
    uncut = msgspec.structs.replace(params, top_p=1.0)
    ordered = (logits.double() / params.temperature).sort(descending=True).values
    if params.min_p:
        margins.append(float((ordered - ordered[0] - math.log(params.min_p)).abs().min()))
    if 0 < params.top_k < len(ordered):
        margins.append(float(ordered[params.top_k - 1] - ordered[params.top_k]))
    if params.top_p < 1:
        mass = probabilities(logits[None], [uncut])[0].sort(descending=True).values.cumsum(0)
        margins.append(float((mass - params.top_p).abs().min()))
    return min(margins)
