"""The paper's tables as experiments: what each point runs, what it is compared with, and what is written."""
from __future__ import annotations

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from bench.paper import ACCOUNTS, Arguments, Point, figure10, main, plot, table6, tabulate
from tests.bench.conftest import ROOT

STATED, CONTENTION = ACCOUNTS


def test_figure_10_goes_over_all_B1():
    points = list(figure10([1, 4]))
    assert [(p.N, p.B) for p in points[:5]] == [(1, (1, 1)), (4, (1, 1)), (4, (1, 2)), (4, (1, 3)), (4, (1, 4))]
    assert [p.account for p in points] == [STATED] * 5 + [CONTENTION] * 5
    assert points[1].paper == 161.26 and points[2].paper is None
    assert points[1].predicted() == pytest.approx(187.19, abs=0.01)
    assert points[3].predicted() == pytest.approx(207.95, abs=0.01)


def test_table_6_takes_its_step_times_from_the_column_of_one_request():
    points = {(p.account.name, p.label, p.N): p for p in table6([1, 4])}
    assert len(points) == 24
    for account in ACCOUNTS:
        first = points[account.name, "TokenRouter", 1]
        for (name, _, N), point in points.items():
            if name == account.name and N == 1:  # both models never run at once, so contention plays no part
                assert point.predicted() / first.predicted() == pytest.approx(point.paper / first.paper, rel=0.01)
    assert points["as stated", "- async execution", 4].predicted() == pytest.approx(139.06, abs=0.01)
    assert points["as stated", "TokenRouter", 4].policy == "optimal"
    assert points["contention", "- delayed batching", 4].predicted() == pytest.approx(161.26, rel=0.02)


@pytest.mark.parametrize("point", [*list(figure10([4]))[:2], *list(table6([8]))[:6:2]], ids=lambda point: point.name)
def test_every_point_is_a_run(point: Point):
    experiment = "figure10" if point.B else "table6"
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", [f"experiment={experiment}", *point.overrides(200.0, 1.1)])
    assert config.load.concurrency == point.N and config.load.num_requests == 52
    assert config.engine.options.models.large.latency_ms == point.latencies[1]
    assert config.system.name == ("step_sync" if point.policy == "step_sync" else "tokenrouter")
    assert point.policy == "step_sync" or config.batching.policy == point.policy
    assert not point.B or tuple(config.batching.B) == point.B


def test_columns_and_plot(tmp_path):
    points = list(figure10([2]))
    for point in points:
        point.measured = [90.0, 100.0, 120.0]
    frame = tabulate(points, [200.0] * 4)
    assert isinstance(frame, pd.DataFrame)
    assert frame["measured"].tolist() == [100.0] * 4 and frame["measured/predicted"].tolist() == [0.5] * 4
    assert frame["least"][0] == 90 and frame["greatest"][0] == 120
    plot(frame, "figure10", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize("words", [
    ["figure=9"], ["figure=10", "table=6"], [], ["table=6", "N=[0]"], ["figure=10", "N=x"], ["figure=10", "repeats=0"]])
def test_bad_arguments(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ValueError, match="allowed is"):
        Arguments(words)
    assert main(words) == 2 and capsys.readouterr().err.startswith("error: ")
