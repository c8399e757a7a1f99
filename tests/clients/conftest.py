"""What the clients are measured against: the server's own counts, and the project's driver on the same problems.

Imported in openai-python's environment too, so what that has not is imported where it is used.
"""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "zoo" / "models" / "small"
MODEL, CONCURRENCY, PROBLEMS, MAX_TOKENS = "r2r", 4, 32, 512
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass
class Figures:
    """What one program says of its requests; None where it does not say."""

    requests: int
    input_tokens: int | None
    output_tokens: int | None
    e2el_ms: float | None = None
    tpot_ms: float | None = None
    accuracy: float | None = None


ROWS = pytest.StashKey[dict[str, Figures]]()


@dataclass
class Client:
    """`bin`: its environment's commands; `file`: the problems, one JSON object a line; `url`: the server's."""

    bin: Path
    url: str
    file: Path
    folder: Path

    def run(self, *command: str | Path, **env: str) -> None:
        """To its end; all that it says is told if it fails."""
        inherited = {name: value for name, value in os.environ.items() if name not in OFFLINE}
        done = subprocess.run([str(word) for word in (self.bin / command[0], *command[1:])], cwd=self.folder,
                              env=inherited | env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout[-5000:]


@dataclass
class Problem:
    id: str
    problem: str
    answer: str


@pytest.fixture(scope="session")
def url() -> str:
    """The server's, without /v1."""
    if "OPENAI_BASE_URL" not in os.environ:
        pytest.skip("OPENAI_BASE_URL names no server: `make clients` starts one")
    return os.environ["OPENAI_BASE_URL"].removesuffix("/v1")


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    from zoo.tasks.arithmetic import problems

    return [Problem(p.id, p.question, str(p.answer)) for p in problems("test", PROBLEMS)]


@pytest.fixture(scope="session")
def problem_file(problems: list[Problem], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    file.write_text("".join(json.dumps(asdict(p)) + "\n" for p in problems))
    return file


@pytest.fixture
def client(request: pytest.FixtureRequest, url: str, problem_file: Path, tmp_path: Path) -> Client:
    """Of the environment that the test's module names: NAME = "guidellm"."""
    name = request.module.NAME
    if "TOKENROUTER_CLIENTS" not in os.environ:
        pytest.skip(f"TOKENROUTER_CLIENTS names no folder with {name}'s environment: `make clients` makes one")
    return Client(Path(os.environ["TOKENROUTER_CLIENTS"]) / name / "bin", url, problem_file, tmp_path)


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest, problem_file: Path, tmp_path_factory: pytest.TempPathFactory
           ) -> tuple[Figures, dict[str, str]]:
    """bench/run.py on the same problems over HTTP: its figures, and the text that it got for each problem."""
    folder = tmp_path_factory.mktemp("driver") / "run"
    done = subprocess.run([
        sys.executable, "bench/run.py", f"algo={MODEL}", "workload=aime", f"workload.path={problem_file}",
        f"workload.max_tokens={MAX_TOKENS}", "load.via=http", f"load.concurrency={CONCURRENCY}",
        f"load.num_requests={PROBLEMS}", "logger=none", f"hydra.run.dir={folder}"], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-5000:]
    summary = json.loads((folder / "summary.json").read_text())
    records = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    figures = Figures(summary["completed"], summary["total_input_tokens"], summary["total_output_tokens"],
                      summary["mean_e2el_ms"], summary["mean_tpot_ms"], summary["quality"]["value"])
    request.config.stash.setdefault(ROWS, {})["bench/run.py"] = figures
    return figures, {record["id"]: record["text"] for record in records}


@pytest.fixture
def counted(url: str) -> Callable[[], Figures]:
    """What the server has counted since the test began, of requests that have ended."""

    def total(text: str, name: str) -> float:
        found = re.search(rf'^sglang:{name}{{model_name="{MODEL}"}} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    names = ("num_requests_total", "prompt_tokens_total", "generation_tokens_total",
             "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count")

    def read() -> list[float]:
        with urllib.request.urlopen(f"{url}/metrics") as response:
            text = response.read().decode()
        return [total(text, name) for name in names]

    before = read()

    def since() -> Figures:
        requests, read_tokens, written, seconds, ended = (b - a for a, b in zip(before, read(), strict=True))
        assert requests == ended, "every request must have come to its own end"
        return Figures(int(requests), int(read_tokens), int(written), seconds / max(ended, 1) * 1e3)

    return since


@pytest.fixture
def agree(request: pytest.FixtureRequest, counted: Callable[[], Figures],
          driver: tuple[Figures, dict[str, str]]) -> Callable[[str, Figures], None]:
    """Whether a client's figures for the problems are the server's, exactly, and the driver's, within noise."""
    own = driver[0]

    def check(name: str, told: Figures) -> None:
        request.config.stash.setdefault(ROWS, {})[name] = told
        served = counted()
        assert told.requests == served.requests == own.requests
        assert told.input_tokens in (None, served.input_tokens) and served.input_tokens == own.input_tokens
        assert told.output_tokens in (None, served.output_tokens)
        assert served.output_tokens is not None and own.output_tokens is not None
        # Greedy, but rows of other batches are rounded otherwise, and a near tie may fall the other way.
        assert abs(served.output_tokens - own.output_tokens) <= 0.02 * own.output_tokens
        if told.e2el_ms is not None and served.e2el_ms is not None:  # of the very same requests
            assert 0.9 * served.e2el_ms <= told.e2el_ms <= 3 * served.e2el_ms
        if told.accuracy is not None and own.accuracy is not None:
            assert abs(told.accuracy - own.accuracy) <= 1.01 / PROBLEMS

    return check


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Each client's figures beside the driver's."""
    rows = config.stash.get(ROWS, {})
    if not rows:
        return
    names = list(Figures.__dataclass_fields__)
    terminalreporter.write_line(f"\n{'':<28}" + "".join(f"{name:>15}" for name in names))
    for row, figures in rows.items():
        cells = ("-" if value is None else f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
                 for value in asdict(figures).values())
        terminalreporter.write_line(f"{row:<28}" + "".join(f"{cell:>15}" for cell in cells))
