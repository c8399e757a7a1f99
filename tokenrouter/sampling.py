"""The one sampler, for every engine.

A draw is keyed by (request seed, position, role, purpose): the same prefix and key give the same token whatever the
batch, the schedule, a discard, a preemption or a restart. One uniform number a draw, inverted through the
cumulative distribution in vocabulary order, so that a reference can say how far the draw was from its neighbour.
"""
from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from tokenrouter.core import Logprobs, Request, SamplingParams

_MASK = (1 << 64) - 1


class Purpose(enum.IntEnum):
    SAMPLE = 0
    ROUTE = 1
    ACCEPT = 2


def uniform(seed: int, position: int, role: int, purpose: Purpose) -> float:
    """A number in [0, 1) that depends on the key alone (splitmix64 over its parts)."""
    x = seed & _MASK
    for part in (position, role, int(purpose)):
        x = (x + 0x9E3779B97F4A7C15 * (part + 1)) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / float(1 << 53)


class Draw(NamedTuple):
    """What one row's sampling needs: its parameters, which output token is drawn (from 0), and the drawing role.

    `ids`: prompt and accepted tokens, where penalties need them. `banned`: ids that may not be drawn now.
    """

    params: SamplingParams
    position: int
    role: int
    ids: Sequence[int] = ()
    banned: Sequence[int] = ()


def draw_of(request: Request, eos_token_ids: Collection[int], drafted: int = 0) -> Draw:
    """How the request's next proposal is drawn, behind so many of its drafts."""
    params, position = request.sampling, request.num_output + drafted
    banned = (*eos_token_ids, *params.stop_token_ids) if position < params.min_tokens else ()
    ids = request.span(0, len(request.ids) + drafted) if _penalised(params) else ()
    return Draw(params, position, request.role, ids, banned)


def sample(logits: torch.Tensor, draws: Sequence[Draw], vocab_size: int) -> torch.Tensor:
    """[B, V] raw logits -> [B] token ids; `logits` are left as they are.

    Ids from `vocab_size` on (padding of one model's embedding, unknown to the others) are never drawn.
    """
    logits = adjusted(logits[:, :vocab_size], draws)
    tokens = logits.argmax(dim=-1)
    rows = [i for i, draw in enumerate(draws) if draw.params.temperature > 0]
    if rows:
        index = torch.tensor(rows, device=logits.device)
        drawn = [draws[i] for i in rows]
        tokens[index] = invert(probabilities(logits[index], [d.params for d in drawn]), drawn)
    return tokens


def invert(weights: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """[B, V] weights of any sum -> [B] tokens with probabilities in proportion, each by its draw's own number."""
    cdf = weights.cumsum(dim=-1)
    u = [uniform(d.params.seed, d.position, d.role, Purpose.SAMPLE) for d in draws]
    # Scaling by the total keeps rounding of the sum from putting u beyond the last token.
    target = torch.tensor(u, dtype=cdf.dtype, device=cdf.device)[:, None] * cdf[:, -1:]
    return torch.searchsorted(cdf, target, right=True).squeeze(1).clamp_(max=weights.shape[-1] - 1)


def adjusted(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """[B, V] logits after penalties, in SGLang's and vLLM's order, and without what is banned; a copy if any is."""
    rows = [i for i, draw in enumerate(draws) if draw.banned or _penalised(draw.params)]
    if not rows:
        return logits
    logits = logits.clone()
    for i in rows:
        draw, row = draws[i], logits[i]
        params = draw.params
        if params.repetition_penalty != 1:
            seen = torch.tensor(sorted(set(draw.ids)), device=row.device)
            values = row[seen]
            row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        if params.presence_penalty or params.frequency_penalty:
            answer = torch.tensor(draw.ids[len(draw.ids) - draw.position :], dtype=torch.long, device=row.device)
            counts = torch.bincount(answer, minlength=len(row))
            row -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
        row[[token for token in draw.banned if token < len(row)]] = -torch.inf
    return logits


def logprobs(logits: torch.Tensor, token: int, count: int) -> Logprobs:
    """[V] raw logits -> what a request that asked for `count` alternatives is told of `token`."""
    values = torch.log_softmax(logits.double(), dim=-1)
    top = values.topk(count)
    return Logprobs(float(values[token]), top.indices.tolist(), top.values.tolist())


def _penalised(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def probabilities(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """[B, V] logits -> [B, V] fp64 probabilities after temperature, min-p, top-k and top-p.

    Filters apply to the tempered distribution in that order, as in vLLM (SGLang has min-p last); ties at a cut are
    kept.
    """
    scale = torch.tensor([p.temperature for p in params], dtype=torch.float64, device=logits.device)
    probs = torch.softmax(logits.double() / scale[:, None], dim=-1)
    if all(p.top_k == 0 and p.top_p >= 1 and p.min_p == 0 for p in params):
        return probs
    ordered = probs.sort(dim=-1, descending=True).values
    vocab = probs.shape[-1]
    cut = probs.new_tensor([p.min_p for p in params]) * ordered[:, 0]
    top_k = torch.tensor([min(p.top_k or vocab, vocab) - 1 for p in params], device=logits.device)
    cut = torch.maximum(cut, ordered.gather(1, top_k[:, None]).squeeze(1))
    kept = ordered.where(ordered >= cut[:, None], 0.0)
    mass = kept.cumsum(dim=-1) / kept.sum(dim=-1, keepdim=True)
    top_p = probs.new_tensor([p.top_p for p in params])
    last = (mass < top_p[:, None] - 1e-12).sum(dim=-1).clamp(max=vocab - 1)
    cut = torch.maximum(cut, kept.gather(1, last[:, None]).squeeze(1))
    probs = probs.where(probs >= cut[:, None], 0.0)
    return probs / probs.sum(dim=-1, keepdim=True)
