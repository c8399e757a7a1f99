"""Every launch policy, under every schedule that chance brings about: the right tokens, and nobody waits for ever."""
from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.toy import ToyCluster, toy_algorithm, toy_reference
from tokenrouter.cluster.spec import BatchingSpec, ClusterSpec, ModelSpec
from tokenrouter.core import InputError
from tokenrouter.subserver import controller, hold
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.controller import Planned
from tokenrouter.subserver.planner import Question, best
from tokenrouter.subserver.policies import PLAIN, PLANNED, make_policy, replay
from tokenrouter.subserver.policy import Asked, Step, Verdict

POLICIES = sorted({**PLANNED, **PLAIN})


class RandomPlanner:
    """Any thresholds, feasible or not, after any number of steps."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._count, self.free = rng, 0, True

    def ask(self, active: int, figures: Sequence[m.Figures], start: Sequence[int] | None) -> None:
        assert all(abs(sum(model.P) - 1) < 1e-9 and model.base_ms > 0 <= model.slope_ms for model in figures if model)
        self._count, self.free = len(figures), False

    def answer(self) -> tuple[int, ...] | None:
        if self.free or self._rng.random() < 0.7:
            return None
        self.free = True
        return tuple(self._rng.choice((1, 1, 2, 5, 12)) for _ in range(self._count))


def restless(cluster: ToyCluster) -> None:
    """Subservers that plan get planners, and ask them all the time."""
    for subserver in cluster.subservers:
        if isinstance(subserver.policy, Planned):
            subserver.policy.controller.planner = RandomPlanner(cluster.rng)


@pytest.fixture(autouse=True, scope="module")
def impatience():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TELL_EVERY": 2, "SMALL_DRIFT": -1.0, "PATIENCE": -1e9, "ASK_EVERY_S": 0.0}.items():
            patch.setattr(controller, name, value)
        patch.setattr(hold, "GRACE", 1e9)  # steps take no time here: who is waited for must come, not be given up
        yield


@settings(max_examples=90, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(policy=st.sampled_from(POLICIES), seed=st.integers(0, 2**32), roles=st.integers(1, 3),
       pages=st.sampled_from([16, 24, 500]), max_batch=st.sampled_from([2, 64]), aborts=st.booleans())
def test_no_schedule_leaves_a_ready_request_unlaunched(policy: str, seed: int, roles: int, pages: int, max_batch: int,
                                                       aborts: bool):
    """Arrivals, handoffs, finishes, evictions, preemptions and aborts at any moment; no time-out may be needed."""
    algorithm = toy_algorithm(roles, entry=seed % roles)
    B = [random.Random(seed + i).randint(1, 12) for i in range(roles)]
    cluster = ToyCluster([algorithm], models=roles, pages=pages, seed=seed, max_batch=max_batch,
                         batching=BatchingSpec(policy=policy, B=B, max_wait_s=1e9))  # type: ignore[arg-type]
    restless(cluster)
    rng = random.Random(seed)
    jobs = [([rng.randrange(1, 64) for _ in range(rng.randint(1, 20))], rng.randint(1, 40)) for _ in range(8)]
    rids = []
    for prompt, max_tokens in jobs:
        rids.append(cluster.submit(prompt, max_tokens))
        for _ in range(rng.randrange(40)):
            cluster.turn()
        if aborts and rng.random() < 0.4:
            cluster.frontend.abort(rng.choice(rids))
    cluster.run(60_000)
    for rid, job in zip(rids, jobs, strict=True):
        tokens, authors, reason = cluster.output(rid)
        expected = toy_reference(algorithm, *job)
        if reason == "abort":
            assert aborts and (tokens, authors) == (expected[0][: len(tokens)], expected[1][: len(tokens)])
        else:
            assert (tokens, authors, reason) == expected
    cluster.check_idle()
    assert all(s.scheduler.counters.timeouts == 0 for s in cluster.subservers)


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("policy", ["optimal", "hold", "slo", "fixed"])
def test_algorithms_that_share_models_do_not_starve_each_other(policy: str, seed: int):
    """One algorithm's requests never come where the other's wait."""
    first, second = toy_algorithm(2), toy_algorithm(2, name="other")
    second.models = [1, 2]
    cluster = ToyCluster([first, second], models=3, pages=500, seed=seed, batching=BatchingSpec(
        policy=policy, B=[6, 6, 6], max_wait_s=1e9))  # type: ignore[arg-type]
    restless(cluster)
    rids = [cluster.submit([i, 5], 40, name) for i, name in enumerate(["toy", "other", "other", "other", "toy"], 1)]
    cluster.run(60_000)
    assert all(cluster.output(rid)[2] for rid in rids)


@pytest.mark.parametrize("policy", ["hold", "optimal", "slo"])
def test_the_log_reproduces_every_decision(policy: str):
    spec = BatchingSpec(policy=policy, launch_log=True, slo_ms=1.0, max_wait_s=1e9)  # type: ignore[arg-type]
    algorithm = toy_algorithm(2)
    cluster = ToyCluster([algorithm], models=2, pages=500, seed=11, batching=spec)
    restless(cluster)
    rids = [cluster.submit([i, 3], 60) for i in range(1, 25)]
    cluster.run()
    verdicts = set()
    for subserver in cluster.subservers:
        decisions = replay(spec, subserver.policy.index, [algorithm.models], subserver.policy.log or [])
        assert len(decisions) > 60 and all(same for _, same in decisions)
        verdicts |= {asked.verdict for asked, _ in decisions}
        wrong = [asked for entry in subserver.policy.log or [] if isinstance(asked := entry, Asked)]
        wrong[50].verdict = Verdict.TIMEOUT
        assert sum(not same for _, same in replay(spec, subserver.policy.index, [algorithm.models],
                                                  subserver.policy.log or [])) == 1
    assert {Verdict.LAUNCH, Verdict.WAIT} | ({Verdict.HOLD} if policy == "hold" else set()) <= verdicts
    assert all(cluster.output(rid)[2] for rid in rids)


class Nobody:
    def post(self, destination: int, message: m.Message) -> None:
        pass


def figures(P: list[float], ms: float) -> m.Figures:
    return m.Figures(100, P, [1.0, 0.0], ms, 0.0)


def queue(ready: int, waited_s: float = 0.0) -> Asked:
    return Asked(0.0, ready, {0: 4}, 64, False, False, waited_s, Verdict.WAIT)


def test_the_hold_rule(monkeypatch: pytest.MonkeyPatch):
    """k r < b p (L - r): one request would save less than the two that return in 2 ms lose by a step of 6 ms."""
    monkeypatch.setattr(hold, "GRACE", 0.5)
    policy = make_policy(BatchingSpec(policy="hold"), 0)
    policy.bind(Nobody(), [[0, 1]])
    policy.receive(1, m.Plan(1, 1, 4, (1, 3), (figures([0.65, 0.35], 6.0), figures([1.0, 0.0], 27.9))), 0.0)
    assert policy.decide(queue(1), 1.0) is Verdict.LAUNCH
    policy.receive(1, m.Launched(2, 10.0, 0.0279), 10.006)  # it was heard late, when a step had ended here
    due = 10.0279
    for ready, left_ms, held in ((1, 3.9, True), (1, 4.1, False), (2, 2.9, True), (2, 3.1, False), (3, 2.5, False)):
        assert (policy.decide(queue(ready), due - left_ms / 1e3) is Verdict.HOLD) == held, (ready, left_ms)
    assert policy.decide(queue(3), due + 0.001) is Verdict.HOLD, "it is late, so it ends at any moment"
    assert policy.decide(queue(3), due + 0.02) is Verdict.LAUNCH, "too late to be waited for"
    assert policy.decide(queue(3, waited_s=1.0), due + 0.001) is Verdict.LAUNCH, "the last resort"
    assert policy.patience_s(queue(1), due) == pytest.approx(0.5 * 0.0279)
    policy.receive(1, m.Landed(), due)
    assert policy.decide(queue(1), due) is Verdict.LAUNCH


def test_a_bounded_wait():
    policy = make_policy(BatchingSpec(policy="slo", slo_ms=30.0), 1)
    policy.bind(Nobody(), [[0, 1]])
    policy.receive(0, m.Plan(1, 0, 4, (1, 3), (figures([0.65, 0.35], 6.0), figures([1.0, 0.0], 27.9))), 0.0)
    assert policy.decide(queue(3), 0.0) is Verdict.LAUNCH
    assert policy.decide(queue(2, 0.029), 0.0) is Verdict.WAIT
    assert policy.decide(queue(2, 0.0301), 0.0) is Verdict.DEADLINE
    assert policy.patience_s(queue(2, 0.02), 0.0) == pytest.approx(0.01)


def test_the_latest_plan_is_in_force_everywhere_and_who_has_an_old_one_is_told():
    plans = [m.Plan(version, author, 4, (1, version), ()) for version, author in ((1, 0), (2, 0), (2, 1))]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        heard = controller.Controller(1, None)
        heard.bind(2)
        answers = [heard.hear(0, plans[i]) for i in order]
        assert heard.plan == plans[2]
        after = order.index(2) + 1
        assert answers[after:] == [plans[2]] * (3 - after) and not any(answers[:1])


def test_measurements_forget():
    measured = controller.Measured(0, 2)
    for i in range(400):
        before = i < 200
        batch = 1 + i % 4
        moves = [(1 if before else 0, 1)] * batch
        measured.add(Step(batch, moves, (6.0 if before else 12.0 + batch), decode=True, active=4))
        if i == 199:
            first = measured.figures()
    assert first.P == [0.0, 1.0] and first.base_ms == pytest.approx(6.0) and first.slope_ms == pytest.approx(0)
    last = measured.figures()
    assert last.P[1] < 0.05 and last.step_ms(2.5) == pytest.approx(14.5, rel=0.04)
    assert last.slope_ms == pytest.approx(1.0, rel=0.2)


def test_steps_that_take_as_long_as_they_have_rows_are_no_reason_to_wait():
    """As of a large model whose requests read long contexts: each row costs as much, alone or with others."""
    measured = controller.Measured(0, 2)
    for i in range(200):
        batch = 1 + i % 4
        measured.add(Step(batch, [(1, 1)] * batch, 1.0 + 10.0 * batch, decode=True, active=4))
    figures = measured.figures()
    assert [figures.step_ms(b) for b in (1, 2, 4)] == pytest.approx([11.0, 21.0, 41.0], rel=0.15)
    small = m.Figures(200, [0.5, 0.5], [1.0, 0.0], 1.0, 1.5)
    large = msgspec.structs.replace(figures, P=[1.0, 0.0], C=[1.0, 0.0])
    assert best("optimal", Question(4, [small, large], None)) == (1, 1)


def test_an_interrupted_step_is_not_what_a_step_takes():
    measured = controller.Measured(0, 1)
    for i in range(100):
        measured.add(Step(2, [(0, 1)] * 2, 500.0 if i == 80 else 6.0, decode=True, active=2))
    assert measured.figures().step_ms(2) == pytest.approx(6.0, rel=0.05)


def test_figures_of_prefill_are_no_figures_of_decoding():
    measured = controller.Measured(0, 1)
    measured.add(Step(1, [(0, 1)], 100.0, decode=False, active=1))
    assert not measured.known and measured.steps == 0


@pytest.mark.parametrize("policy", ["step_sync", "model_sync"])
def test_synchronous_systems_run_one_algorithm(policy: str):
    algorithms = [toy_algorithm(1), toy_algorithm(1, name="b")]
    spec = ClusterSpec(models=[ModelSpec(name="a", path="a")], algorithms=algorithms,
                       batching=BatchingSpec(policy=policy))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf"batching.policy={policy}: allowed is one algorithm at a time"):
        spec.check()


def test_only_one_model_runs_at_a_time_under_model_sync_and_all_keep_step_under_step_sync():
    for policy in ("model_sync", "step_sync"):
        algorithm = toy_algorithm(3)
        cluster = ToyCluster([algorithm], models=3, pages=500, seed=5,
                             batching=BatchingSpec(policy=policy))  # type: ignore[arg-type]
        for i in range(6):
            cluster.submit([1 + i, 2], 30)
        rounds = [0, 0, 0]
        while cluster.frontend.num_open:
            cluster.turn()
            policies = [s.policy for s in cluster.subservers]
            if policy == "model_sync":
                assert sum(p.holding for p in policies) <= 1  # type: ignore[attr-defined]
            else:
                rounds = [p.round for p in policies]  # type: ignore[attr-defined]
                assert max(rounds) - min(rounds) <= 1
        assert policy == "model_sync" or min(rounds) > 10
