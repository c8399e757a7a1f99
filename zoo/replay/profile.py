"""Routing profiles: how requests go from model to model, as one file that any engine can replay.

    python -m zoo.replay.profile RUN_FOLDER [out=FILE]

writes that of a finished run, to results/profiles/<algo>/<models>/<workload>.json below the working directory.
"""
from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf

from tokenrouter.core import InputError
from tokenrouter.paths import resolve
from tokenrouter.throughput.inputs import from_profile, read_json
from tokenrouter.throughput.spec import Spec
from zoo.cli import run
from zoo.replay.runs import run_lengths


class Profile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What results/profiles/README.md explains, field by field."""

    algo: str
    models: str
    workload: str
    roles: list[str]
    P: list[list[float]]
    C: list[list[float]]
    run_lengths: list[list[float] | None] | None = None
    threshold: float | str | None = None
    date: str
    data_source: str | None = None
    data_version: int | str | None = None
    source: str


def load_profile(path: str) -> Profile:
    """A profile, as given or below the installed package. InputError, naming file and field, if it is none."""
    file = str(resolve(path))
    try:
        raw = read_json(file)
        profile = msgspec.convert(raw, Profile)
        fields = from_profile(file)
        Spec.parse(fields | {"N": 1, "L_ms": [1] * len(profile.roles), "delta_ms": 1})
    except msgspec.ValidationError as error:
        raise InputError(f"profile={path!r}: {error}; allowed is a routing profile as in results/profiles/") from None
    except InputError as error:
        raise InputError(f"profile={path!r}: {str(error).removeprefix(f'{file}: ')}") from None
    return msgspec.structs.replace(profile, P=fields["P"])  # with rows that sum to 1 exactly


def profile_of_run(folder: Path) -> Profile:
    """The routing that a run measured. InputError if the folder holds no finished run that measured it."""
    summary = read_json(str(folder / "summary.json"))
    routing, origin = _object(folder, summary, "routing"), _object(folder, summary, "provenance")
    P, C = routing.get("P"), routing.get("C")
    if not isinstance(P, list) or not isinstance(C, list):
        raise InputError(f"{folder}/summary.json: routing.P={P!r}: allowed is a run in which each model made a step")
    config: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=True)
    roles, entry = list(config["algo"]["roles"]), config["algo"]["entry"]
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    written = [row["token_models"] for row in map(json.loads, lines) if row["error"] is None and row["token_models"]]
    first = roles.index(entry) if isinstance(entry, str) else None
    return Profile(
        algo=config["algo"]["name"], models=config["models"]["name"], workload=config["workload"]["name"], roles=roles,
        P=P, C=C, run_lengths=run_lengths(P, C, first, written), threshold=config["algo"].get("threshold"),
        date=str(origin.get("date"))[:10], data_source=str(origin.get("data_source")),
        data_version=_plain(origin.get("data_version")),
        source=f"a run of {len(written)} requests on engine={summary.get('engine')}, {origin.get('evidence')}, "
               f"config {origin.get('config_hash')}, commit {origin.get('git_sha')}",
    )


def write_profile(profile: Profile, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(msgspec.to_builtins(profile), indent=1) + "\n", encoding="utf-8")
    os.replace(part, file)


def _object(folder: Path, summary: Mapping[str, object], name: str) -> dict[str, Any]:
    value = summary.get(name)
    if not isinstance(value, dict):
        raise InputError(f"{folder}/summary.json: has no object {name}; allowed is the summary of a run")
    return value


def _plain(value: object) -> int | str | None:
    return value if isinstance(value, (int, str)) or value is None else str(value)


def main(arguments: list[str]) -> None:
    folders = [argument for argument in arguments if "=" not in argument]
    out = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if len(folders) != 1 or not set(out) <= {"out"}:
        raise InputError(f"arguments={arguments}: allowed is RUN_FOLDER [out=FILE]")
    profile = profile_of_run(Path(folders[0]))
    default = f"results/profiles/{profile.algo}/{profile.models}/{profile.workload}.json"
    file = Path(out.get("out", default))
    write_profile(profile, file)
    print(file)


if __name__ == "__main__":
    run(main)
