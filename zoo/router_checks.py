"""Checks of zoo/conformance.py that ask an algorithm's routers alone: no schedule, no messages."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tokenrouter.core import InputError
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, Param, StepResult
from zoo.cases import Case
from zoo.reference import TOLERANCE


def parameters_are_checked(case: Case) -> None:
    """Out of range or unknown, in the configuration or with a request: one error that names the field."""
    algorithm = case.algorithm
    cluster = case.cluster()
    _refused("params.nonsense", lambda: cluster.submit([1], case.sampling(), params={"nonsense": 1}))
    for name, param in algorithm.params.items():
        assert param.doc, f"{name}: says nothing of what it means"
        for bad in _bad(param, len(algorithm.roles)):
            _refused(name, lambda value=bad, name=name: cluster.submit([1], case.sampling(), params={name: value}))
            for role, router in algorithm.routers.items():
                changed = Algorithm(algorithm.name, algorithm.roles, {**algorithm.routers, role: {**router, name: bad}},
                                    algorithm.entry)
                if any(own.name == name for own in type(algorithm.router(role)).params):
                    _refused(name, lambda changed=changed, role=role: changed.router(role))


def batch_equals_single(case: Case) -> None:
    """A request's destination does not depend on those beside it."""
    for role in range(len(case.paths)):
        router, result = case.router(role), case.result(role)
        together = _route(router, result)
        apart = torch.cat([_route(router, _rows(result, [row])) for row in range(len(together))])
        backwards = _route(router, _rows(result, list(range(len(together)))[::-1])).flip(0)
        decided = _decided(router, result)
        for other in (apart, backwards):
            assert torch.equal(together[decided], other[decided]), f"role {role}: neighbours change destinations"


def extend_and_decode_agree(case: Case) -> None:
    """A position computed in the middle of an extend is routed as one that was decoded."""
    for role in range(len(case.paths)):
        router = case.router(role)
        extended, decoded = (case.result(role, at_once=at_once) for at_once in (True, False))
        decided = _decided(router, extended)
        assert torch.equal(_route(router, extended)[decided], _route(router, decoded)[decided]), f"role {role}"


def broken_numbers_are_survived(case: Case) -> None:
    """Logits that are -inf, NaN or far apart get a destination, and leave other rows alone; and to mask the least
    likely token changes nothing that was decided."""
    for role in range(len(case.paths)):
        router, result = case.router(role), case.result(role)
        expected, decided = _route(router, result), _decided(router, result)
        logits = result.logits_output.next_token_logits
        masked, apart = logits.clone(), torch.full_like(logits, -120.0)
        masked.scatter_(1, logits.argmin(1, keepdim=True), -torch.inf)
        apart.scatter_(1, logits.argmax(1, keepdim=True), 120.0)
        lonely = torch.full_like(logits, -torch.inf).scatter_(1, logits.argmax(1, keepdim=True), 0.0)
        hidden = result.logits_output.hidden_states
        assert hidden is not None
        as_masked = _route(router, StepResult(result.next_token_ids, LogitsOutput(masked, hidden), result.requests))
        clear = _decided(router, result, margin=0.01)
        assert torch.equal(as_masked[clear], expected[clear]), f"role {role}: one logit of -inf changes destinations"
        for broken in (masked, apart, lonely, torch.full_like(logits, torch.nan), torch.full_like(logits, -torch.inf)):
            for states in (hidden, torch.full_like(hidden, torch.nan)):
                half = torch.arange(len(logits)) % 2 == 0  # every second row is broken
                mixed = StepResult(result.next_token_ids, LogitsOutput(
                    torch.where(half[:, None], broken, logits), torch.where(half[:, None], states, hidden)),
                    result.requests)
                found = _route(router, mixed)
                rest = ~half & decided
                assert torch.equal(found[rest], expected[rest]), f"role {role}: a broken row changes others"


def no_logits_but_the_declared(case: Case) -> None:
    """Where `top_logits` says how many of the likeliest tokens' logits are looked at, the others may be missing."""
    for role in range(len(case.paths)):
        router, result = case.router(role), case.result(role)
        if router.top_logits is None:
            continue
        logits, hidden = result.logits_output
        kept = logits.topk(min(max(1, router.top_logits), logits.shape[-1]))
        cut = torch.full_like(logits, -torch.inf).scatter(1, kept.indices, kept.values)
        found = _route(router, StepResult(result.next_token_ids, LogitsOutput(cut, hidden), result.requests))
        decided = _decided(router, result)
        assert torch.equal(found[decided], _route(router, result)[decided]), f"role {role}: looks at other logits"


def answers_are_destinations(case: Case) -> None:
    """Whole numbers, one a row, on the model's device or on the CPU; the logits stay as they are."""
    for role in range(len(case.paths)):
        router, result = case.router(role), case.result(role)
        before = result.logits_output.next_token_logits.clone()
        answer = router.route(_visible(router, result))
        assert torch.equal(before, result.logits_output.next_token_logits), f"role {role}: route changes the logits"
        assert answer.shape == (len(result.requests),), f"role {role}: {tuple(answer.shape)}"
        assert not answer.is_floating_point() and answer.dtype != torch.bool, f"role {role}: {answer.dtype}"
        assert answer.device in (before.device, torch.device("cpu")), f"role {role}: {answer.device}"
        for name, value in vars(router).items():
            modules = [value] if isinstance(value, torch.nn.Module) else []
            tensors = [value] if isinstance(value, torch.Tensor) else []
            for tensor in (*tensors, *(p for module in modules for p in module.parameters())):
                assert tensor.device == before.device, f"role {role}: {name} is on {tensor.device}"


def _bad(param: Param, roles: int) -> list[object]:
    numbers: list[object] = [param.low - 1, param.high * 2 + 1, float("nan"), "often", None, True]
    if param.per_role:
        numbers = [[*[1] * (roles - 1), number] for number in numbers] + [[1] * (roles + 1), [0] * roles, 1.0]
    return numbers


def _refused(name: str, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except InputError as error:
        assert name in str(error) and "allowed" in str(error), f"{name}: the error does not name it: {error}"
    else:
        raise AssertionError(f"{name}: a value that makes no sense is taken")


def _visible(router: BaseRouter, result: StepResult) -> StepResult:
    """As the runtime shows it: hidden states only to those that need them."""
    logits, hidden = result.logits_output
    return StepResult(result.next_token_ids, LogitsOutput(logits, hidden if "hidden_states" in router.needs else None),
                      result.requests)


def _route(router: BaseRouter, result: StepResult) -> torch.Tensor:
    """[B] destinations on the CPU, each in range."""
    with torch.inference_mode():
        found = router.route(_visible(router, result)).cpu().long()
    assert ((found >= 0) & (found < len(router.roles))).all(), f"destinations {found.tolist()}"
    return found


def _rows(result: StepResult, rows: Sequence[int]) -> StepResult:
    index = torch.tensor(rows)
    logits, hidden = result.logits_output
    assert hidden is not None
    return StepResult(result.next_token_ids[index], LogitsOutput(logits[index], hidden[index]),
                      [result.requests[row] for row in rows])


def _decided(router: BaseRouter, result: StepResult, margin: float = TOLERANCE) -> torch.Tensor:
    """[B] bool: rows whose score is clear of the threshold."""
    with torch.inference_mode():
        if not hasattr(router, "margin"):
            return torch.ones(len(result.requests), dtype=torch.bool)
        return router.margin(_visible(router, result)).cpu() >= margin
