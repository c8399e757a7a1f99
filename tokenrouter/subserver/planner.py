"""The process that works out thresholds for a controller, so that its subserver's loop is never held up.

`python -m tokenrouter.subserver.planner POLICY` reads a JSON question a line and answers each with a line.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from tokenrouter.core import InputError
from tokenrouter.subserver.messages import Figures
from tokenrouter.subserver.policy import feasible, scaled
from tokenrouter.subserver.process import die_with_parent, step_back

LARGEST = 24  # requests for which thresholds are worked out; those for more are scaled, which loses next to nothing
LARGEST_CHAIN = 8  # the same for one model at a time and three models or more, where the chain grows fast
QUANTA = 24  # in the shortest step: latencies are rounded to these
AS_GOOD = 0.002  # relative loss of throughput that figures measured in service could not tell
FLAT = 0.05  # relative growth of a step over all batches, below which it counts as constant: solved faster


class Question(msgspec.Struct):
    active: int
    figures: list[Figures | None]
    start: tuple[int, ...] | None


class PlannerProcess:
    """Implements tokenrouter.subserver.controller.Planner."""

    def __init__(self, policy: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "tokenrouter.subserver.planner", policy],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin and self._process.stdout
        self._questions, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._answers.fileno(), False)
        self.free = True
        self._read = b""

    def ask(self, active: int, figures: Sequence[Figures | None], start: Sequence[int] | None) -> None:
        question = Question(active, list(figures), None if start is None else tuple(start))
        self._questions.write(msgspec.json.encode(question) + b"\n")
        self._questions.flush()
        self.free = False

    def answer(self) -> tuple[int, ...] | None:
        if self.free:
            return None
        try:
            data = os.read(self._answers.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        if not data:
            raise RuntimeError(f"the planner ended with exit status {self._process.wait()}")
        self._read += data
        if not self._read.endswith(b"\n"):
            return None
        answer, self._read, self.free = json.loads(self._read), b"", True
        return None if answer is None else tuple(answer)

    def close(self) -> None:
        """It ends with its questions, and at the latest with its parent."""
        self._questions.close()
        self._answers.close()
        self._process.kill()
        self._process.wait()


def best(policy: str, question: Question) -> tuple[int, ...]:
    """The thresholds of most throughput under `policy` (paper equation 24), 1 for models that nothing is known of and
    nothing goes to. InputError where there are none."""
    there = [index for index, figures in enumerate(question.figures) if figures]
    figures = [msgspec.structs.replace(model, P=[model.P[i] for i in there], C=[model.C[i] for i in there])
               for model in question.figures if model]
    start = question.start and tuple(question.start[i] for i in there)
    B = dict(zip(there, _best(policy, question.active, figures, start), strict=True))
    return tuple(B.get(index, 1) for index in range(len(question.figures)))


def _best(policy: str, active: int, figures: Sequence[Figures], start: tuple[int, ...] | None) -> tuple[int, ...]:
    from tokenrouter.throughput.inputs import quantised
    from tokenrouter.throughput.ladder import best_model_sync
    from tokenrouter.throughput.search import Effort, search
    from tokenrouter.throughput.spec import Spec

    N = min(active, LARGEST_CHAIN if policy == "model_sync" and len(figures) > 2 else LARGEST)
    tables = [[model.step_ms(b * active / N) for b in range(1, N + 1)] for model in figures]
    tables = [[table[N // 2]] if table[-1] <= table[0] * (1 + FLAT) else table for table in tables]
    delta = min(table[0] for table in tables) / QUANTA
    spec = Spec.parse({
        "N": N, "P": [model.P for model in figures], "C": [model.C for model in figures], "delta_ms": delta,
        "L_ms": [[quantised(f"L_ms[{i}]", ms, delta) for ms in table] for i, table in enumerate(tables)],
        "hold": range(len(figures)) if policy == "hold" else None})
    if policy == "model_sync":
        return scaled(best_model_sync(spec).B, N, active)
    start = start and feasible(scaled(start, active, N), N)
    # What is reported of the B that is found is not looked at here.
    effort = Effort(events=300, replicas=16, report_events=10, report_replicas=2, states=300)
    return scaled(least(search(spec, start=start, effort=effort).table), N, active)


def least(table: Mapping[tuple[int, ...], float]) -> tuple[int, ...]:
    """Of the thresholds that are as good as the best, those at which requests wait least; of equal ones the best."""
    good = max(table.values()) * (1 - AS_GOOD)
    return min((B for B, value in table.items() if value >= good), key=lambda B: (sum(B), -table[B]))


def main(policy: str) -> None:
    die_with_parent(only=True)
    step_back()
    for line in sys.stdin.buffer:
        try:
            answer = best(policy, msgspec.json.decode(line, type=Question))
        except InputError as error:  # such as a model that is never left any more: the thresholds stay as they are
            print(f"no new thresholds: {error}", file=sys.stderr)
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
