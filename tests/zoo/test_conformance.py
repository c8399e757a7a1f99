"""The zoo's algorithms pass the kit; routers that break a rule, and a runtime that does, do not."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.zoo.algorithms import RETURN, pair
from tokenrouter.core import FinishReason, Request
from tokenrouter.interface import Algorithm, BaseRouter, Param, PeerReq, RequestView, StepResult
from tokenrouter.subserver.routing import Routing
from tokenrouter.subserver.scheduler import Scheduler
from zoo import conformance as kit
from zoo.cases import Case
from zoo.conformance import conformance
from zoo.entropy.router import EntropySmall, normalised_entropy

test_entropy = conformance("entropy")
test_random = conformance("random")
test_r_stitch = conformance("r_stitch")
test_me = conformance("me")
test_r2r = conformance("r2r", models="tiny")
test_citer = conformance("citer", models="tiny")
test_collm = conformance("collm", models="tiny")


class Neighbours(EntropySmall):
    """Compares with the batch's mean."""

    def route(self, result: StepResult) -> torch.Tensor:
        entropies = normalised_entropy(result.logits_output.next_token_logits)
        return (entropies > entropies.mean()).long()


class OwnThreshold(EntropySmall):
    """Does not ask for the request's."""

    def values(self, name: str, result: StepResult) -> torch.Tensor:
        return torch.full((len(result.requests),), getattr(self, name))


class AsInTheFigure(EntropySmall):
    """The paper's formula, which is NaN where a probability is 0."""

    def score(self, tensors: Any, params: Any) -> torch.Tensor:
        p = tensors.logits.softmax(-1)
        return -(p * p.log()).sum(-1) / torch.tensor(p.shape[-1]).log()


class Forgetful(EntropySmall):
    """Sends all ids with each handoff."""

    def send(self, req: RequestView) -> PeerReq:
        ids = req.ids_from(0, proposal=False)
        return PeerReq(req.rid, ids, len(ids))


class Counting(BaseRouter):
    """Leaves at every third step that it sees, whoever's."""

    calls = 0

    def route(self, result: StepResult) -> torch.Tensor:
        self.calls += 1
        return torch.full((len(result.requests),), int(self.calls % 3 == 0))


class Bools(EntropySmall):
    def route(self, result: StepResult) -> torch.Tensor:
        return super().route(result).bool()


class Scaling(EntropySmall):
    """Writes into logits that others read."""

    def route(self, result: StepResult) -> torch.Tensor:
        result.logits_output.next_token_logits.mul_(0.5)
        return super().route(result)


class Understated(EntropySmall):
    """Looks at more than two logits."""

    top_logits = 2


class Undocumented(EntropySmall):
    params = (Param("threshold", 0.1, 0.0, 1.0, "", sends="above"),)


class Unchecked(EntropySmall):
    """Takes any threshold."""

    params = (type("Any", (Param,), {"parse": lambda self, value, roles=(): float("inf")})(
        "threshold", 0.1, 0.0, 1.0, "anything", sends="above"),)


def algorithm(router: type[BaseRouter]) -> Algorithm:
    spec = {"_target_": f"tests.zoo.test_conformance.{router.__name__}"}
    return Algorithm("broken", ("small", "large"), {"small": spec, "large": RETURN}, "small")


@pytest.mark.parametrize(("router", "check"), [
    (Neighbours, kit.batch_equals_single), (OwnThreshold, kit.parameters_are_the_requests_own),
    (OwnThreshold, kit.alone_is_the_model), (AsInTheFigure, kit.broken_numbers_are_survived),
    (Forgetful, kit.peers_get_what_they_lack), (Counting, kit.equal_to_the_reference),
    (Bools, kit.answers_are_destinations), (Scaling, kit.answers_are_destinations),
    (Understated, kit.no_logits_but_the_declared), (Undocumented, kit.parameters_are_checked),
    (Unchecked, kit.parameters_are_checked),
])  # fmt: skip
def test_a_router_that_breaks_a_rule_fails(router: type[BaseRouter], check: kit.Check, tmp_path: Path) -> None:
    case = Case.over_random_models(algorithm(router), tmp_path, mixed={"threshold": 0.6} if router.params else {})
    with pytest.raises(AssertionError):
        check(case)


@pytest.fixture(scope="module")
def entropy(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A sound one, as `test_entropy` shows, for runtimes that are not."""
    return Case.over_random_models(pair(), tmp_path_factory.mktemp("case"), mixed={"threshold": 0.6})


def test_an_end_that_is_tested_before_the_route_is_caught(entropy: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Routing._settle

    def early(self: Routing, request: Request, view: RequestView, *rest: Any) -> Any:
        if view.proposal[0] in self.eos_token_ids:
            self.lifecycle.end(request, FinishReason.STOP)
            return self.lifecycle.index, 0
        return settle(self, request, view, *rest)

    monkeypatch.setattr(Routing, "_settle", early)
    with pytest.raises(AssertionError):
        kit.end_of_sequence_anywhere(entropy)


def test_a_length_that_counts_what_was_discarded_is_caught(entropy: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Routing._settle

    def counting(self: Routing, request: Request, view: RequestView, *rest: Any) -> Any:
        sampling = request.sampling
        request.sampling = msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - request.counts[1])
        move = settle(self, request, view, *rest)
        request.sampling = sampling
        return move

    monkeypatch.setattr(Routing, "_settle", counting)
    with pytest.raises(AssertionError):
        kit.max_tokens_anywhere(entropy)


def test_kv_that_is_believed_to_be_there_after_an_eviction_is_caught(entropy: Case,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    release = Scheduler._release_kv

    def believing(self: Scheduler, request: Request) -> None:
        kv_len = request.kv_len
        release(self, request)
        request.kv_len = max(0, kv_len - 1)
        if kv_len:  # open again, as if the last token alone were missing
            self.engine.open(request.rid, request.ids[:1])
            request.resident = True

    monkeypatch.setattr(Scheduler, "_release_kv", believing)
    with pytest.raises((AssertionError, ValueError, KeyError, RuntimeError)):
        kit.evicted_while_away(entropy)
