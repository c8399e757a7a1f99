"""Replayed routing: the same ways under every schedule, the given frequencies, and profiles out of runs and back."""
from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from scipy import stats

from tests.toy import ToyCluster
from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec
from tokenrouter.core import FinishReason, InputError, Request, SamplingParams
from tokenrouter.interface import LogitsOutput, RequestView, StepResult
from tokenrouter.server.frontend import EndEvent
from tokenrouter.subserver import messages as m
from tokenrouter.throughput.inputs import from_profile
from zoo.replay.profile import Profile, load_profile, main, profile_of_run, write_profile
from zoo.replay.router import Leaving
from zoo.replay.runs import histogram, run_lengths

R2R: dict[str, Any] = {"P": [[0.65, 0.35], [1.0, 0.0]], "C": [[1.0, 0.0], [1.0, 0.0]]}
THREE: dict[str, Any] = {
    "P": [[0.2, 0.5, 0.3], [0.4, 0.0, 0.6], [0.3, 0.3, 0.4]],
    "C": [[1.0, 0.0, 0.5], [1.0, 0.0, 0.25], [1.0, 1.0, 1.0]],
}  # fmt: skip
ME: dict[str, Any] = {"P": [[0.5, 0.3, 0.2]] * 3, "C": [[1.0] * 3] * 3}


def replay(entry: int = 0, **config: Any) -> AlgorithmSpec:
    names = [f"m{r}" for r in range(len(config["P"]))]
    routers = {name: {"_target_": "zoo.replay.router.Replay", **config} for name in names}
    return AlgorithmSpec(name="toy", roles=names, routers=routers, entry=names[entry], models=list(range(len(names))))


class Run:
    """Requests of seeds 0, 1, ... served under a schedule that `chance` brings about."""

    def __init__(self, algorithm: AlgorithmSpec, requests: int, tokens: int, *, chance: int = 0, pages: int = 500,
                 B: Sequence[int] | None = None, max_batch: int = 64) -> None:
        count = len(algorithm.models)
        batching = BatchingSpec(policy="fixed", B=list(B or [1] * count), max_wait_s=1e9)
        self.cluster = ToyCluster([algorithm], models=count, pages=pages, seed=chance, batching=batching,
                                  max_batch=max_batch)
        order = list(range(requests))
        random.Random(chance).shuffle(order)
        self.rids: dict[int, str] = {}
        for seed in order:
            sampling = SamplingParams(seed, tokens, ignore_eos=True)
            self.rids[seed] = self.cluster.frontend.submit([1 + seed % 60, 2, 3], sampling, "toy")
            for _ in range(self.cluster.rng.randrange(10)):
                self.cluster.turn()
        self.cluster.run()
        self.cluster.check_idle()

    @property
    def authors(self) -> list[list[int]]:
        return [self.cluster.output(self.rids[seed])[1] for seed in sorted(self.rids)]

    @property
    def transitions(self) -> list[list[int]]:
        return [s.stats.transitions["toy"] for s in self.cluster.subservers]

    @property
    def commits(self) -> list[list[int]]:
        return [s.stats.commits["toy"] for s in self.cluster.subservers]


@pytest.mark.parametrize("config", [R2R, THREE, ME, R2R | {"run_lengths": [[3, 0, 1, 5], None]}],
                         ids=["r2r", "three", "me", "runs"])
def test_no_schedule_changes_a_request_s_way(config: dict[str, Any]) -> None:
    algorithm, models = replay(**config), len(config["P"])
    first = Run(algorithm, 12, 40)
    for other in (Run(algorithm, 12, 40, chance=1, B=[3, 2, 1][:models]),
                  Run(algorithm, 12, 40, chance=2, pages=16), Run(algorithm, 12, 40, chance=3, max_batch=1)):
        assert other.authors == first.authors
        assert other.transitions == first.transitions and other.commits == first.commits
    assert len({tuple(way) for way in first.authors}) == 12, "each seed has a way of its own"


@pytest.fixture(scope="module")
def long_run() -> Run:
    return Run(replay(**THREE), 60, 120)


def test_routes_are_as_frequent_as_given(long_run: Run) -> None:
    for counts, row in zip(long_run.transitions, THREE["P"], strict=True):
        assert sum(counts) > 1000
        seen, expected = zip(*[(n, p * sum(counts)) for n, p in zip(counts, row, strict=True) if p], strict=True)
        assert sum(seen) == sum(counts), "a route of probability 0 was taken"
        assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_proposals_are_kept_as_often_as_given(long_run: Run) -> None:
    for i, row in enumerate(THREE["C"]):
        for j, kept in enumerate(row):
            commits, steps = long_run.commits[i][j], long_run.transitions[i][j]
            if kept in (0, 1):
                assert commits == kept * steps
            else:
                assert stats.binomtest(commits, steps, kept).pvalue > 1e-3


def test_decisions_at_one_position_are_drawn_anew() -> None:
    """Both models discard whenever they leave: no token is written until one of them stays."""
    algorithm = replay(P=[[0.1, 0.9], [0.8, 0.2]], C=[[1.0, 0.0], [0.0, 1.0]]).build()
    routers = [algorithm.router(role) for role in algorithm.roles]
    counts = [[0, 0], [0, 0]]
    for seed in range(300):
        holders = [Request("r", 0, role, 0, SamplingParams(seed, 9), {}, [1, 2], 2, [2, 2]) for role in (0, 1)]
        role = 0
        while not holders[role].num_output:
            view = RequestView(holders[role], proposal=7)
            rows = torch.zeros(1, 8)
            view.destination = int(routers[role].route(StepResult(torch.tensor([7]), LogitsOutput(rows, None), [view])))
            counts[role][1 - role if view.destination else role] += 1
            if view.destination:
                message = routers[role].send(view)
                assert (message.token_ids, message.loc) == ([], 2)
                role = 1 - role
                assert routers[role].receive(message, RequestView(holders[role])) == []
            else:
                holders[role].accept([7], [role])
    for row, expected in zip(counts, ([0.1, 0.9], [0.8, 0.2]), strict=True):
        assert stats.chisquare(row, [p * sum(row) for p in expected]).pvalue > 1e-3


@pytest.mark.parametrize(("config", "expected"), [
    ({"P": [[0, 1], [1, 0]], "C": [[0, 1], [1, 0]]}, [0, 1, 0, 1, 0, 1]),
    ({"P": [[0, 1], [1, 0]], "C": [[0, 0], [1, 0]]}, [1, 1, 1, 1, 1, 1]),
    ({"P": [[1, 0], [1, 0]], "C": [[1, 0], [1, 0]]}, [0, 0, 0, 0, 0, 0]),
    ({"P": [[0, 0, 1], [1, 0, 0], [0, 1, 0]], "C": [[0, 0, 1], [1, 0, 0], [0, 1, 0]]}, [0, 2, 1, 0, 2, 1]),
    (R2R | {"run_lengths": [[0, 0, 1], None]}, [0, 0, 1, 0, 0, 1]),
    ({"P": [[0.5, 0.5], [0.5, 0.5]], "C": [[1, 1], [1, 1]], "run_lengths": [[0, 1], [0, 0, 1]]}, [0, 0, 1, 1, 1, 0]),
])  # fmt: skip
def test_ways_that_chance_has_no_part_in(config: dict[str, Any], expected: list[int]) -> None:
    assert Run(replay(**config), 2, 6, B=[1] * len(config["P"])).authors == [expected] * 2


def test_the_entry_is_where_a_way_begins() -> None:
    config = {"P": [[0, 1], [1, 0]], "C": [[0, 1], [1, 0]]}
    assert Run(replay(entry=1, **config), 1, 4).authors == [[1, 0, 1, 0]]


def test_run_lengths_are_as_frequent_as_given() -> None:
    """P would leave after one step in three; the histogram has only short and long runs."""
    weights = [0.5, 0.0, 0.0, 0.2, 0.0, 0.3]
    leaving = Leaving(0, [2 / 3, 0.1, 7 / 30], weights)
    draw, lengths, targets = random.Random(0), Counter[int](), Counter[int]()
    for _ in range(3000):
        step = 1
        while (target := leaving.target(draw.random(), step)) == 0:
            step += 1
        lengths[step] += 1
        targets[target] += 1
    assert set(lengths) == {1, 4, 6}
    assert stats.chisquare([lengths[s] for s in (1, 4, 6)], [1500, 600, 900]).pvalue > 1e-3
    assert stats.chisquare([targets[1], targets[2]], [900, 2100]).pvalue > 1e-3


def test_every_route_to_a_peer_is_a_message() -> None:
    run = Run(replay(**THREE), 20, 60)
    cluster, models = run.cluster, range(3)
    sent = Counter((i, j) for i, j, message in cluster.wire.sent if isinstance(message, m.Handoff))
    assert not any(isinstance(message, m.Resend) for _, _, message in cluster.wire.sent)
    ends = [event for event in cluster.events if isinstance(event, EndEvent)]
    assert sum(sent.values()) == sum(end.handoffs for end in ends) > 500
    ended_leaving = sum(run.transitions[i][j] - sent[i, j] for i in models for j in models if i != j)
    stayed = sum(run.commits[i][i] for i in models)
    kept = sum(run.commits[i][j] for i in models for j in models if i != j)
    assert stayed + kept == sum(end.num_output for end in ends) == 20 * 60
    assert 0 <= ended_leaving <= len(ends), "what was routed away and not sent ended with the token it kept"
    assert all(run.transitions[i][j] >= sent[i, j] for i in models for j in models if i != j)
    discarded = sum(run.transitions[i][j] - run.commits[i][j] for i in models for j in models)
    assert discarded == sum(end.discarded for end in ends)
    assert {end.reason for end in ends} == {FinishReason.LENGTH}


# Run lengths out of who wrote what.


def test_runs_around_a_model_that_discards_are_recovered() -> None:
    ways = [[0, 0, 1, 1, 0, 1], [1, 0, 0, 0]]
    # Runs of model 0: 3 (two kept, one discarded), 1, 2; then 1, and three steps when the request ended.
    found = run_lengths(R2R["P"], R2R["C"], 0, ways)
    assert found[1] == [1.0]
    assert found[0] == pytest.approx([2 / 5, (3 / 5) * (1 / 3), (3 / 5) * (2 / 3)])


def test_runs_of_kept_proposals_are_recovered() -> None:
    found = run_lengths(ME["P"], ME["C"], 0, [[0, 0, 1, 2, 2, 2, 0], [1, 0, 2]])
    # Model 0: runs of 2 and 1, and one that lasted 0 steps or more. Model 2: a run of 3; the last one is unknown.
    assert found[0] == [0.5, 0.5] and found[1] == [1.0] and found[2] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("config", [THREE, {"P": [[0.5, 0.5], [0.5, 0.5]], "C": [[1, 0], [1, 1]]}])
def test_runs_that_left_no_trace_are_unknown(config: dict[str, Any]) -> None:
    assert run_lengths(config["P"], config["C"], 0, [[0, 1, 1, 0]]) == [None] * len(config["P"])


def test_runs_cut_short_count_as_longer_ones() -> None:
    assert histogram([(1, True), (2, False), (3, True)]) == pytest.approx([1 / 3, 0, 2 / 3])
    assert histogram([(1, True), (2, False)]) == pytest.approx([0.5, 0.5])
    assert histogram([(2, False), (0, False)]) is None


def test_a_measured_histogram_is_the_replayed_one() -> None:
    weights = [0.4, 0.3, 0.0, 0.3]
    run = Run(replay(**R2R, run_lengths=[weights, None]), 30, 100)
    found = run_lengths(R2R["P"], R2R["C"], 0, run.authors)[0]
    assert found is not None and sum(found) == pytest.approx(1)
    assert found[2] == 0 and len(found) == 4
    assert found == pytest.approx(weights, abs=0.06)


# Profiles.


def profile(**changed: Any) -> Profile:
    known = {"algo": "r2r", "models": "pair", "workload": "aime", "roles": ["small", "large"], **R2R,
             "run_lengths": [[0.5, 0.25, 0.25], None], "threshold": 0.5, "date": "2026-01-01",
             "data_source": "rows", "data_version": 1, "source": "somewhere"}
    return msgspec.convert(known | changed, Profile)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "new" / "p.json"
    write_profile(profile(), file)
    assert load_profile(str(file)) == profile()
    assert from_profile(str(file)) == {**R2R, "run_lengths": [[0.5, 0.25, 0.25], None]}  # as the planner does


def test_rounded_rows_are_made_to_sum_to_one(tmp_path: Path) -> None:
    write_profile(profile(P=[[0.667, 0.3335], [1.0, 0.0]]), tmp_path / "p.json")
    assert sum(load_profile(str(tmp_path / "p.json")).P[0]) == pytest.approx(1, abs=1e-12)


def test_a_profile_replays(tmp_path: Path) -> None:
    write_profile(profile(run_lengths=None), tmp_path / "p.json")
    algorithm = replay(**R2R)
    for router in algorithm.routers.values():
        router |= {"P": None, "C": None, "profile": str(tmp_path / "p.json")}
    assert Run(algorithm, 5, 30).authors == Run(replay(**R2R), 5, 30).authors


def test_every_committed_profile_can_be_read() -> None:
    folder = Path(__file__).parents[2] / "results/profiles"
    files = sorted(folder.glob("**/*.json"))
    assert files
    for file in files:
        read = load_profile(str(file))
        assert file.relative_to(folder) == Path(read.algo, read.models, f"{read.workload}.json") and read.source


def test_a_run_s_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(replay(**R2R), 10, 60)
    P = [[n / sum(row) for n in row] for row in run.transitions]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({
        "engine": "torch", "routing": {"P": P, "C": R2R["C"]},
        "provenance": {"date": "2026-05-01T10:00:00+00:00", "data_source": "rows", "data_version": 3,
                       "evidence": "measured", "config_hash": "abc", "git_sha": "def"}}))
    (folder / "config.yaml").write_text(
        "algo: {name: r2r, entry: small, threshold: 0.4, roles: {small: {}, large: {}}}\n"
        "models: {name: pair}\nworkload: {name: aime}\n")
    rows = [{"token_models": way, "error": None} for way in run.authors] + [{"token_models": [0], "error": "lost"}]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = profile_of_run(folder)
    assert (made.algo, made.models, made.workload, made.threshold) == ("r2r", "pair", "aime", 0.4)
    assert (made.date, made.data_source, made.data_version, made.roles) == ("2026-05-01", "rows", 3, ["small", "large"])
    assert made.P == P and R2R["C"] == made.C and "10 requests" in made.source
    assert made.run_lengths == run_lengths(P, R2R["C"], 0, run.authors)
    monkeypatch.chdir(tmp_path)
    main([str(folder)])
    assert capsys.readouterr().out.strip() == "results/profiles/r2r/pair/aime.json"
    assert load_profile("results/profiles/r2r/pair/aime.json").date == "2026-05-01"
    main([str(folder), "out=other.json"])
    assert load_profile("other.json") == load_profile("results/profiles/r2r/pair/aime.json")


# What is wrong is named.


@pytest.mark.parametrize(("changed", "said"), [
    ({"P": [[0.6, 0.3], [1.0, 0.0]]}, "P[0]: [0.6, 0.3] sums to 0.9"),
    ({"P": [[0.65, 0.35]]}, "P: 1 rows of [2] entries"),
    ({"C": [[1.0, 0.0]]}, "C: 1 rows of [2] entries"),
    ({"C": None}, "Expected `array`, got `null` - at `$.C`"),
    ({"roles": ["small"]}, "P: 2 rows of [2] entries"),
    ({"run_lengths": [[1.0]]}, "run_lengths: 1 entries"),
    ({"run_lengths": [[0.0], None]}, "run_lengths[0]: [0.0] has no weight"),
    ({"nope": 1}, "Object contains unknown field `nope`"),
    ({"source": 1}, "Expected `str`, got `int` - at `$.source`"),
])  # fmt: skip
def test_a_bad_profile_is_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps(msgspec.to_builtins(profile()) | changed))
    with pytest.raises(InputError) as caught:
        load_profile(str(file))
    assert str(caught.value).startswith(f"profile={str(file)!r}: {said}")


@pytest.mark.parametrize(("content", "said"), [
    (None, "cannot be read (No such file"), ("{", "is not JSON"), ("[]", "holds a list"),
])  # fmt: skip
def test_a_file_that_is_no_profile(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "p.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError) as caught:
        load_profile(str(file))
    assert str(caught.value).startswith(f"profile={str(file)!r}: {said}")


@pytest.mark.parametrize(("config", "said"), [
    ({"P": None, "C": None}, "P=None: allowed is a list of rows"),
    (R2R | {"C": None}, "C: missing"),
    (R2R | {"P": [[0.5, 0.6], [1, 0]]}, "P[0]: [0.5, 0.6] sums to 1.1"),
    (R2R | {"C": [[0, 0], [1, 0]]}, "C[0][0]=0: allowed is 1, as a request that stays"),
    (R2R | {"C": [[1, 2], [1, 0]]}, "C[0][1]=2: allowed is 0 to 1"),
    (R2R | {"C": [[1, 0], [1, 0]], "run_lengths": [None, [0, 1]]}, "C[1][1]=0: allowed is 1"),
    (ME | {"roles": 2}, "P: has 3 rows; allowed is 2, one for each of ['m0', 'm1']"),
])  # fmt: skip
def test_bad_matrices_are_named(config: dict[str, Any], said: str) -> None:
    config = dict(config)
    names = [f"m{r}" for r in range(config.pop("roles", 2))]
    router = {"_target_": "zoo.replay.router.Replay", **config}
    spec = AlgorithmSpec(name="a", roles=names, routers=dict.fromkeys(names, router), entry="m0", models=[0, 1])
    with pytest.raises(InputError) as caught:
        spec.build().router("m0")
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "nope=1"], ["missing"]])
def test_a_command_that_cannot_be_followed(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        main(arguments)
