"""Speculative decoding as routing: the small model drafts; the large one verifies the drafts in a step and returns."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tokenrouter.interface import BaseRouter, ModelContext, Param, PeerReq, RequestView, ReturnAfterOne, StepResult
from tokenrouter.sampling import Draw, Purpose, adjusted, invert, probabilities, uniform

_SHARES = "speculative"  # in view.state: for each draft, what it was drawn from

Shares = tuple[bytes, bytes]
"""A distribution over the vocabulary: the ids that have a share (int32), and the shares (fp32)."""


class SpeculativeSmall(BaseRouter):
    """Drafts `drafts_per_step` tokens, fewer where the answer ends, and sends them to be verified.

    Where tokens are sampled, the distributions that the drafts were drawn from travel along.
    """

    params = (Param("drafts_per_step", 4, 1, 15, "tokens drafted before they are verified",
                    whole=True),)
    drafts = True
    peers = 1
    drafts_per_step: float

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        self._ends = frozenset(model.eos_token_ids)

    def route(self, result: StepResult) -> torch.Tensor:
        limits = self.values("drafts_per_step", result).long().tolist()
        answers = []
        for view, row, limit in zip(result.requests, result.logits_output.next_token_logits, limits, strict=True):
            params, drafted = view.sampling_params, len(view.drafts) + 1
            if params.temperature > 0:
                assert view.draw is not None
                shares = view.state.setdefault(_SHARES, [])
                del shares[drafted - 1 :]  # of drafts that were sent
                shares.append(_pack(_distribution(row[None, : result.vocab_size], [view.draw])[0]))
            ends = self._ends.union(params.stop_token_ids)
            full = drafted >= min(limit, params.max_tokens - view.num_accepted)
            answers.append(int(full or view.proposal[-1] in ends))
        return torch.tensor(answers, device=result.next_token_ids.device)

    def send(self, req: RequestView) -> PeerReq:
        message = super().send(req)
        message.extra = req.state.get(_SHARES)
        return message


class SpeculativeLarge(ReturnAfterOne):
    """Accepts drafts as far as they hold, adds one token of its own and returns.

    Greedy: a draft holds if it is this model's own choice. Sampled: by rejection (Leviathan et al. 2023, Chen et al.
    2023), which leaves every token distributed as this model would have it: a draft x drawn from q holds with
    probability min(1, p(x) / q(x)), and the first that does not is replaced by a draw from max(0, p - q).
    """

    def receive(self, peer_req: PeerReq, req: RequestView) -> list[int]:
        req.state[_SHARES] = peer_req.extra
        return super().receive(peer_req, req)

    def verify(self, req: RequestView, sampled: list[int], logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        if req.sampling_params.temperature == 0:
            return super().verify(req, sampled, logits, draws)
        wanted = _distribution(logits, draws)
        for i, (draft, shares) in enumerate(zip(req.drafts, req.state[_SHARES], strict=True)):
            offered = _unpack(shares, wanted[i])
            if _chance(draws[i]) * offered[draft] >= wanted[i, draft]:
                rest = (wanted[i] - offered).clamp(min=0)
                return [*req.drafts[:i], int(invert(rest[None], draws[i : i + 1]))]
        return [*req.drafts, sampled[-1]]

    def verify_margin(self, view: RequestView, drafts: Sequence[int], logits: torch.Tensor,
                      draws: Sequence[Draw]) -> float:
        """How far the decisions that gave `view.proposal` were from others: in logits where greedy, else in mass."""
        from zoo.reference import filter_margin, sample_margin, share_margin  # the reference is what asks

        accepted, params = len(view.proposal) - 1, view.sampling_params
        if params.temperature == 0:
            return min(sample_margin(*each) for each in zip(logits, draws, view.proposal, strict=False))
        wanted = _distribution(logits, draws)
        margins = [filter_margin(row, params) for row in adjusted(logits, draws)[: accepted + 1]]
        for i, draft in enumerate(drafts[: accepted + 1]):
            offered = _unpack(view.state[_SHARES][i], wanted[i])
            margins.append(abs(float(_chance(draws[i]) * offered[draft] - wanted[i, draft])))
            if i == accepted:
                rest = (wanted[i] - offered).clamp(min=0)
                return min(*margins, share_margin(rest / rest.sum(), draws[i], view.proposal[-1]))
        return min(*margins, share_margin(wanted[accepted], draws[accepted], view.proposal[-1]))


def _distribution(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """[B, V] fp64: what the sampler draws from."""
    return probabilities(adjusted(logits, draws), [draw.params for draw in draws])


def _chance(draw: Draw) -> float:
    return uniform(draw.params.seed, draw.position, draw.role, Purpose.ACCEPT)


def _pack(shares: torch.Tensor) -> Shares:
    ids = shares.nonzero().squeeze(1)
    return ids.to("cpu", torch.int32).numpy().tobytes(), shares[ids].to("cpu", torch.float32).numpy().tobytes()


def _unpack(packed: Shares, like: torch.Tensor) -> torch.Tensor:
    """[V] of the type of `like` [V]. Ids that this model does not know have no share."""
    ids, shares = np.frombuffer(packed[0], np.int32), np.frombuffer(packed[1], np.float32)
    known = ids < len(like)
    full = torch.zeros_like(like)
    full[torch.tensor(ids[known].astype(np.int64), device=like.device)] = torch.tensor(
        shares[known], device=like.device).to(like.dtype)
    return full
