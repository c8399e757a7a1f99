from __future__ import annotations

import math

import pytest
import torch

from tokenrouter.core import InputError, Request, SamplingParams
from tokenrouter.interface import (
    Algorithm,
    BaseRouter,
    LogitsOutput,
    Param,
    PeerReq,
    RequestView,
    ReturnAfterOne,
    StepResult,
)


def request(role: int = 0, known: tuple[int, ...] = (5, 0)) -> Request:
    return Request("r", 0, role, 0, SamplingParams(0, 9), {}, ids=[1, 2, 3, 4, 5], prompt_len=3, known=list(known),
                   authors=[0, 1])


class PaperSLM(BaseRouter):
    """Written against the names of the paper's Figure 3; `tau` and `peer_idx` come from the config."""

    def route(self, result):
        logits = result.logits_output.next_token_logits
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1) / math.log(logits.shape[-1])
        destination = torch.zeros_like(entropy, dtype=torch.long)
        destination[entropy > self.tau] = self.peer_idx
        return destination.cpu()

    def send(self, req) -> PeerReq:
        token_ids = req.origin_input_ids + req.output_ids[:-1]
        anchor = req.peer_locs[self.peer_idx] or 0
        return PeerReq(rid=req.rid, token_ids=token_ids[anchor:], loc=len(token_ids), finished=req.finished())


ALGORITHM = Algorithm("paper", ("small", "large"), {
    "small": {"_target_": "tests.test_interface.PaperSLM", "tau": 0.5, "peer_idx": 1},
    "large": {"_target_": "tokenrouter.interface.ReturnAfterOne"},
}, "small")


def test_a_router_of_the_papers_figure_loads_as_it_is():
    router = ALGORITHM.router("small")
    view = RequestView(request(), proposal=7)
    sure, unsure = torch.tensor([9.0, 0, 0, 0]), torch.zeros(4)
    result = StepResult(torch.tensor([0, 0]), LogitsOutput(torch.stack([sure, unsure]), None), [view, view])
    assert router.route(result).tolist() == [0, 1]
    assert router.send(view) == PeerReq("r", [1, 2, 3, 4, 5], 5)


@pytest.mark.parametrize("router, known, expected", [
    (BaseRouter(), (5, 0), PeerReq("r", [1, 2, 3, 4, 5], 5)),
    (BaseRouter(), (5, 4), PeerReq("r", [5], 5)),
    (ReturnAfterOne(), (5, 4), PeerReq("r", [5, 7], 6)),
])
def test_ready_made_handoffs(router: BaseRouter, known: tuple[int, ...], expected: PeerReq):
    view = RequestView(request(known=known), proposal=7)
    view.destination = 1
    assert router.send(view) == expected


def test_a_view_shows_the_proposal_and_the_locs_of_others():
    view = RequestView(request(role=1, known=(2, 5, 4)), proposal=7)
    assert view.output_ids == [4, 5, 7] and view.origin_input_ids == [1, 2, 3]
    assert view.peer_locs == [0, 2, 4]
    assert not view.finished()


def test_destinations_count_the_other_roles():
    algorithm = Algorithm("a", ("x", "y", "z"), {}, "x")
    assert [algorithm.destination_role(role, d) for role in range(3) for d in (1, 2)] == [1, 2, 0, 2, 0, 1]
    with pytest.raises(ValueError, match="allowed is 0 to 2"):
        algorithm.destination_role(0, 3)


@pytest.mark.parametrize("sends, never, always", [("above", math.inf, -math.inf), ("below", -math.inf, math.inf)])
def test_threshold_words(sends, never: float, always: float):
    param = Param("threshold", 0.5, 0, 1, "", sends=sends)
    assert param.parse("never") == never and param.parse("always") == always and param.parse(0.25) == 0.25


@pytest.mark.parametrize("value", [1.01, -0.1, "sometimes", float("nan"), None, True])
def test_a_threshold_out_of_range_is_named(value: object):
    with pytest.raises(InputError, match=r"threshold=.*allowed is a number in \[0, 1\], or never, or always"):
        Param("threshold", 0.5, 0, 1, "", sends="above").parse(value)


def test_an_unknown_target_is_named():
    with pytest.raises(InputError, match=r"_target_='zoo\.nothing\.Here'"):
        Algorithm("a", ("x",), {"x": {"_target_": "zoo.nothing.Here"}}, "x").router("x")
