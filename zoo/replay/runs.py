"""Lengths of runs (consecutive steps of one request on one model) out of who wrote which token.

Discarded proposals leave no trace in that, so the lengths are known only where it does not matter.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

Matrix = Sequence[Sequence[float]]
Runs = list[tuple[int, bool]]  # steps, and whether the run ended then: else the request ended, or may have, before it


def run_lengths(P: Matrix, C: Matrix, entry: int | None, requests: Sequence[Sequence[int]]) -> list[list[float] | None]:
    """For each model weights of runs of 1, 2, ... steps, or None where they cannot be known.

    `requests`: for each its tokens' authors. They can be known where all proposals are kept, and where one model
    discards those after which it leaves while each other one writes a single token and hands back to it (R2R, CITER).
    """
    models = range(len(P))
    leaves = [[C[i][j] for j in models if j != i and P[i][j] > 0] for i in models]
    discarding = [i for i in models if any(kept != 1 for kept in leaves[i])]
    if not discarding:
        return [histogram(found) for found in _all_kept(len(P), requests)]
    home = discarding[0]
    others = [i for i in models if i != home]
    if len(discarding) == 1 and not any(leaves[home]) and all(P[i][home] == 1 for i in others):
        found = _around(home, entry == home, requests)
        return [histogram(found) if i == home else [1.0] for i in models]
    return [None] * len(P)


def histogram(runs: Runs) -> list[float] | None:
    """Weights by length, that sum to 1: the Kaplan-Meier estimate, as runs that the request's end cut short were longer
    than they look. Where the longest was cut short, it counts as if it had ended. None without a whole run."""
    ended = Counter(steps for steps, whole in runs if whole)
    if not ended:
        return None
    seen = Counter(steps for steps, _ in runs)
    weights, surviving, at_risk = [], 1.0, len(runs) - seen[0]
    for steps in range(1, max(seen) + 1):
        weights.append(surviving * ended[steps] / at_risk)
        surviving -= weights[-1]
        at_risk -= seen[steps]
    weights[-1] += max(surviving, 0.0)
    return weights


def _all_kept(models: int, requests: Sequence[Sequence[int]]) -> list[Runs]:
    found: list[Runs] = [[] for _ in range(models)]
    for authors in requests:
        blocks = [(author, len(list(group))) for author, group in groupby(authors)]
        for author, steps in blocks[:-1]:
            found[author].append((steps, True))
        author, steps = blocks[-1]
        found[author].append((steps - 1, False))  # with its last token it may have left
    return found


def _around(home: int, enters: bool, requests: Sequence[Sequence[int]]) -> Runs:
    """Runs of the model to which all others hand back. `enters`: requests begin there."""
    found: Runs = []
    for authors in requests:
        steps, here = 0, enters
        for author in authors:
            if author == home:
                steps += 1
            else:
                if here:
                    found.append((steps + 1, True))  # and the proposal that was discarded
                steps, here = 0, True
        if here:
            found.append((steps, False))
    return found
