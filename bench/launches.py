"""The launch log of a run (batching.launch_log=true), and a check that it explains every decision.

    python bench/launches.py RUN_FOLDER

replays launches.jsonl through fresh policies and counts the decisions that come out the same. Exit code 1 if any
differs.
"""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
FILE = "launches.jsonl"


def write_launches(folder: Path, reports: Sequence[dict[str, Any]]) -> None:
    """One line an entry: [subserver, entry]; no file where nothing was logged."""
    lines = [msgspec.json.encode([i, entry]) + b"\n"
             for i, report in enumerate(reports) for entry in report.get("launches", ())]
    if lines:
        (folder / FILE).write_bytes(b"".join(lines))


def replayed(folder: Path) -> Iterator[tuple[int, Any, bool]]:
    """(subserver, decision, whether it is reproduced) of a run's log."""
    from omegaconf import OmegaConf

    from bench.config import validate
    from bench.plan import cluster_spec
    from bench.predict import policy_of
    from tokenrouter.subserver.policies import replay
    from tokenrouter.subserver.policy import Asked, Heard

    values: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    config = validate(values)
    spec = cluster_spec(config, values)
    batching = msgspec.structs.replace(spec.batching, policy=policy_of(config))
    logs: dict[int, list[Asked | Heard]] = {}
    with (folder / FILE).open("rb") as lines:
        for line in lines:
            index, entry = msgspec.json.decode(line, type=tuple[int, Asked | Heard])
            logs.setdefault(index, []).append(entry)
    for index, log in logs.items():
        for asked, same in replay(batching, index, [a.models for a in spec.algorithms], log):
            yield index, asked, same


def main(words: Sequence[str]) -> int:
    if len(words) != 1 or not (Path(words[0]) / FILE).is_file():
        print(f"error: RUN_FOLDER={' '.join(words)!r}: allowed is the folder of a run with {FILE}", file=sys.stderr)
        return 2
    verdicts: dict[int, Counter[str]] = {}
    differing = 0
    for index, asked, same in replayed(Path(words[0])):
        verdicts.setdefault(index, Counter())[asked.verdict] += 1
        differing += not same
    for index, counts in verdicts.items():
        print(f"subserver {index}: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    total = sum(counts.total() for counts in verdicts.values())
    print(f"{total - differing} of {total} decisions reproduced")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not bench/, whose modules would hide others of the same names
    sys.exit(main(sys.argv[1:]))
