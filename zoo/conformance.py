"""What every algorithm must keep, as one line of a test file:

    from zoo.conformance import conformance

    test_margin = conformance("margin")             # conf/algo/margin.yaml, over small models of random weights
    test_r2r = conformance("r2r", models="tiny")    # a router that was trained for these models

Each check is a test of its own. They hold the algorithm's routers to what the runtime relies on (zoo/router_checks.py),
and the runtime with these routers to the reference (zoo/reference.py), whatever the schedule.
"""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

import msgspec

from tokenrouter.core import Status
from tokenrouter.interface import Algorithm
from tokenrouter.server.text import INCOMPLETE, Detokenizer, StopStrings
from tokenrouter.subserver import messages as m
from zoo.cases import Case
from zoo.harness import InProcessCluster
from zoo.offline import single
from zoo.reference import TOLERANCE, Reference, compare
from zoo.router_checks import (
    answers_are_destinations,
    batch_equals_single,
    broken_numbers_are_survived,
    extend_and_decode_agree,
    no_logits_but_the_declared,
    parameters_are_checked,
)
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

    folders = []  # live as long as the test

    @cache
    def case() -> Case:
        folders.append(TemporaryDirectory(prefix="zoo-conformance-"))
        folder = Path(folders[0].name)
        if isinstance(algo, Algorithm):
            return Case.over_random_models(algo, folder, **options)
        return Case.compose(algo, models, folder, overrides, **options)

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
    while not cluster.is_over(rid):
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


def stop_strings_across_a_handoff(case: Case) -> None:
    """A stop string of which one model wrote the beginning and another the end is found as any other."""
    job, tested = _greedy(case), 0
    whole = case.truth(job, frozenset())
    full = str(case.tokenizer.decode(whole.token_ids, skip_special_tokens=True))
    changes = [t for t in range(1, len(whole.token_ids)) if whole.token_models[t - 1] != whole.token_models[t]]
    for t in changes[:3] or [len(whole.token_ids) // 2]:
        stop = str(case.tokenizer.decode(whole.token_ids[t - 1 : t + 1], skip_special_tokens=True))
        if len(stop) < 2 or INCOMPLETE in stop or stop not in full:
            continue  # no text of both
        tested += 1
        cluster = case.cluster(t, eos=frozenset())
        rid = cluster.submit(job.prompt_ids, job.sampling, params=job.params)
        text = _until_stop(cluster, rid, Detokenizer(case.tokenizer), StopStrings([stop]))
        cluster.frontend.abort(rid)
        cluster.run()
        cluster.check_idle()
        assert text == full[: full.index(stop)], f"{text!r} before {stop!r} in {full!r}"
    if not tested:
        raise SkipTest("no handoff lies between two tokens that have a text")


def _until_stop(cluster: InProcessCluster, rid: str, detokenizer: Detokenizer, stops: StopStrings) -> str:
    """The text before the stop string, from the tokens as they come out."""
    text, seen = "", 0
    while not cluster.is_over(rid):
        cluster.turn()
        for event in cluster.events[seen:]:
            for token in getattr(event, "token_ids", ()):
                out, found = stops.feed(detokenizer.feed(token))
                text += out
                if found is not None:
                    return text
        seen = len(cluster.events)
    raise AssertionError("the answer came to its end, and the stop string was not found")


def max_tokens_anywhere(case: Case) -> None:
    """The length counts accepted tokens, also where a handoff falls on the last one."""
    job = _greedy(case)
    whole = case.truth(job, frozenset())
    lengths = range(1, len(whole.token_ids) + 1)
    jobs = [msgspec.structs.replace(job, sampling=case.sampling(max_tokens=length)) for length in lengths]
    _cut(case, whole, list(lengths), case.served(case.cluster(eos=frozenset()), jobs))


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
    stop_ids_anywhere, stop_strings_across_a_handoff, max_tokens_anywhere, parameters_are_checked,
    parameters_are_the_requests_own, batch_equals_single, extend_and_decode_agree, broken_numbers_are_survived,
    no_logits_but_the_declared, answers_are_destinations, peers_get_what_they_lack,
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
