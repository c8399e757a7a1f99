"""What every algorithm must keep, as one line of a test file:

    from zoo.conformance import conformance

    test_margin = conformance("margin")             # conf/algo/margin.yaml, over small models of random weights
    test_r2r = conformance("r2r", models="tiny")    # a router that was trained for these models

Each check is a test of its own. They hold the algorithm's routers to what the runtime relies on, and the runtime with
these routers to the reference (zoo/reference.py), whatever the schedule.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import SkipTest

import msgspec
import torch

from tokenrouter.core import InputError, Status
from tokenrouter.interface import Algorithm, BaseRouter, LogitsOutput, Param, StepResult
from tokenrouter.subserver import messages as m
from zoo.cases import Case, temporary_folder
from zoo.harness import InProcessCluster
from zoo.offline import single
from zoo.reference import TOLERANCE, Reference, compare
from zoo.walk import Record

Check = Callable[[Case], None]


def conformance(algo: str | Algorithm, models: str | None = None, *, overrides: Sequence[str] = (),
                **options: Any) -> Callable[[Check], None]:
    """A parametrised pytest test that runs all of CHECKS on an algorithm.

    `algo`: a choice of conf/algo, or an Algorithm. `models`: a choice of conf/models whose roles the algorithm has;
    without it, models of random weights. `overrides`: of conf/. `options`: see zoo.cases.Case: `mixed`, `alone`,
    `max_tokens`, each found out where it is not given.
    """
    import pytest  # not needed to serve

    @cache
    def case() -> Case:
        folder = temporary_folder()
        if isinstance(algo, Algorithm):
            made = Case.over_random_models(algo, Path(folder.name), **options)
        else:
            made = Case.compose(algo, models, Path(folder.name), overrides, **options)
        made.keep = folder  # type: ignore[attr-defined]  # the folder lives as long as the case
        return made

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test(check: Check) -> None:
        check(case())

    return test


def alone_is_the_model(case: Case) -> None:
    """`never` is the small model's answer and `always` the large one's, in the reference and in the runtime."""
    if not case.alone:
        raise SkipTest("no parameters leave everything to one model")
    for role, params in case.alone.items():
        model = Reference(single(), [case.reference.models[role]], case.reference.vocab_size)
        model.eos = case.reference.eos
        jobs = [Record(prompt, case.sampling(), dict(params)) for prompt in case.prompts]
        for job, got in zip(jobs, case.served(case.cluster(), jobs), strict=True):
            expected = model.decode(job.prompt_ids, job.sampling)
            for record in (case.truth(job), got):
                assert record.token_ids == expected.token_ids, f"with {params}, role {role} alone writes otherwise"
                assert set(record.token_models) == {role}, f"with {params}, others than role {role} write"


def equal_to_the_reference(case: Case) -> None:
    """Under several schedules and launch thresholds, greedy and sampled."""
    count, rng = len(case.paths), random.Random(3)
    assert _handed_over(case) or count == 1, f"with {case.mixed} nothing is handed over: give `mixed`"
    for seed, B in enumerate(([1] * count, [2] * count, [rng.randint(1, 4) for _ in range(count)])):
        _equal(case, case.served(case.cluster(seed, B=B), case.jobs()))


def evicted_while_away(case: Case) -> None:
    """With room for few requests: what is away loses its KV, and nothing else."""
    evictions = 0
    for seed in range(3):
        cluster = case.cluster(seed, capacity=case.tight)
        _equal(case, case.served(cluster, case.jobs()))
        evictions += sum(subserver.scheduler.counters.evictions for subserver in cluster.subservers)
    assert evictions or not _handed_over(case), "nothing was evicted: this says nothing"


def aborted_while_away(case: Case) -> None:
    """Aborted as soon as the entry has handed it over: what was written is the reference's, and nothing is left."""
    if not _handed_over(case):
        raise SkipTest("nothing is handed over")
    caught = 0
    for seed in range(2):
        cluster = case.cluster(seed)
        rids = [cluster.submit(job.prompt_ids, job.sampling, params=job.params) for job in case.jobs()]
        for rid in rids[::2]:
            caught += _run_until_away(cluster, rid)
            cluster.frontend.abort(rid)
        cluster.run()
        cluster.check_idle()
        for rid, true in zip(rids, case.truths, strict=True):
            got = cluster.collect(rid, msgspec.structs.replace(true))
            if got.finish_reason == "abort":
                assert got.token_ids == true.token_ids[: len(got.token_ids)]
            else:
                assert compare(got, true).kind != "diverged"
    assert caught, "no request was caught away: this says nothing"


def _run_until_away(cluster: InProcessCluster, rid: str) -> bool:
    """Until the request is pending somewhere, or over."""
    while rid in cluster.frontend._open:
        held = [subserver.scheduler.requests.get(rid) for subserver in cluster.subservers]
        if any(request is not None and request.status is Status.PENDING for request in held):
            return True
        cluster.turn()
    return False


def end_of_sequence_anywhere(case: Case) -> None:
    """Whatever token is the end: accepted, it ends the answer at its first place; discarded, it ends nothing."""
    job = _greedy(case)
    whole = case.truth(job, frozenset())
    proposed = set(whole.token_ids) | {int(token) for role in range(len(case.paths))
                                       for token in case.result(role).next_token_ids[: len(whole.token_ids)]}
    for end in sorted(proposed)[:: max(1, len(proposed) // 8)]:
        eos = frozenset({end})
        _cut(case, whole, [_until(whole, end)], [case.truth(job, eos)])
        _cut(case, whole, [_until(whole, end)], case.served(case.cluster(eos=eos), [job]))


def stop_ids_anywhere(case: Case) -> None:
    """As ends of sequence, for one request alone: those beside it go on."""
    job = _greedy(case)
    whole = case.truth(job, frozenset())
    ends = sorted(set(whole.token_ids))
    jobs = [msgspec.structs.replace(job, sampling=case.sampling(stop_token_ids=(end,))) for end in ends]
    got = case.served(case.cluster(eos=frozenset()), [*jobs, job])
    _cut(case, whole, [*(_until(whole, end) for end in ends), len(whole.token_ids)], got)


def max_tokens_anywhere(case: Case) -> None:
    """The length counts accepted tokens, also where a handoff falls on the last one."""
    job = _greedy(case)
    whole = case.truth(job, frozenset())
    lengths = range(1, len(whole.token_ids) + 1)
    jobs = [msgspec.structs.replace(job, sampling=case.sampling(max_tokens=length)) for length in lengths]
    _cut(case, whole, list(lengths), case.served(case.cluster(eos=frozenset()), jobs))


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


def parameters_are_the_requests_own(case: Case) -> None:
    """Requests with different parameters share a batch, and each gets what it would get alone."""
    if not case.alone or not case.mixed:
        raise SkipTest("no parameters to tell requests apart")
    settings = [(case.mixed, None), *((params, role) for role, params in case.alone.items())]
    jobs = [Record(prompt, case.sampling(), dict(params)) for prompt in case.prompts for params, _ in settings]
    writers = [role for _ in case.prompts for _, role in settings]
    for got, job, role in zip(case.served(case.cluster(), jobs), jobs, writers, strict=True):
        verdict = compare(got, case.truth(job))
        assert verdict.kind != "diverged", f"with {job.params}: {verdict}"
        assert role is None or set(got.token_models) == {role}, f"with {job.params}, others than role {role} write"


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


def peers_get_what_they_lack(case: Case) -> None:
    """Each handoff's suffix begins where the receiver's ids end: nothing twice, and no gap."""
    cluster = case.cluster()
    case.served(cluster, case.jobs())
    held: dict[tuple[str, int], int] = {}
    for sender, receiver, message in cluster.wire.sent:
        if isinstance(message, m.Submit):
            held[message.rid, receiver] = len(message.prompt_ids)
        elif isinstance(message, m.Handoff):
            start, has = message.loc - len(message.token_ids), held.get((message.rid, receiver), 0)
            assert start == has, f"{message.rid}: told from {start} on, and holds {has}"
            held[message.rid, receiver] = held[message.rid, sender] = message.loc


CHECKS: tuple[Check, ...] = (
    alone_is_the_model, equal_to_the_reference, evicted_while_away, aborted_while_away, end_of_sequence_anywhere,
    stop_ids_anywhere, max_tokens_anywhere, parameters_are_checked, parameters_are_the_requests_own,
    batch_equals_single, extend_and_decode_agree, broken_numbers_are_survived, answers_are_destinations,
    peers_get_what_they_lack,
)


def _equal(case: Case, records: Sequence[Record]) -> None:
    for got, true in zip(records, case.truths, strict=True):
        verdict = compare(got, true)
        assert verdict.kind != "diverged", verdict


def _handed_over(case: Case) -> bool:
    return any(record.handoffs for record in case.truths)


def _greedy(case: Case) -> Record:
    """The longest prompt: at the prompts' ends there are the most ids to get wrong."""
    return Record(max(case.prompts, key=len), case.sampling(), dict(case.mixed))


def _until(whole: Record, end: int) -> int:
    return whole.token_ids.index(end) + 1 if end in whole.token_ids else len(whole.token_ids)


def _cut(case: Case, whole: Record, lengths: Sequence[int], got: Sequence[Record]) -> None:
    """Each record is as much of the whole as its length says."""
    for length, record in zip(lengths, got, strict=True):
        written = list(zip(record.token_ids, record.token_models, strict=True))
        expected = list(zip(whole.token_ids, whole.token_models, strict=True))[:length]
        undecided = [t for t, margin in enumerate(whole.margins[:length]) if margin < TOLERANCE]
        upto = undecided[0] if undecided else None
        assert written[:upto] == expected[:upto] and (undecided or len(written) == length), (written, expected)


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
