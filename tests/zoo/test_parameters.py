"""What every algorithm of conf/algo says of its parameters, and what it makes of a request's."""
from __future__ import annotations

from pathlib import Path

import pytest

from tokenrouter.core import InputError
from tokenrouter.interface import Algorithm
from zoo.setup import Setup

CHOICES = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "algo").glob("*.yaml"))


@pytest.fixture(params=CHOICES)
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    return Setup.compose([f"algo={request.param}"]).algorithm


def test_parameters_have_defaults_in_range_and_a_meaning(algorithm: Algorithm) -> None:
    for name, param in algorithm.params.items():
        assert param.doc and param.low < param.high
        if not param.per_role:
            assert algorithm.parse({name: param.default}) == {name: param.default}


def test_what_is_unknown_or_out_of_range_is_named(algorithm: Algorithm) -> None:
    with pytest.raises(InputError, match=r"params\.tau: unknown; allowed for \w+ is \["):
        algorithm.parse({"tau": 0.5})
    for name, param in algorithm.params.items():
        for value in (param.high + 1, param.low - 1, "much"):
            with pytest.raises(InputError, match=f"{name}=.*allowed is a"):
                algorithm.parse({name: value})


def test_a_threshold_has_its_words_and_means_the_same_to_all_roles(algorithm: Algorithm) -> None:
    if "threshold" not in algorithm.params:
        return
    low, high = sorted(float(algorithm.parse({"threshold": word})["threshold"])  # type: ignore[arg-type]
                       for word in ("never", "always"))
    assert low == -float("inf") and high == float("inf")
    sides = set()
    for role in algorithm.roles:
        alone = Algorithm(algorithm.name, (role,), {role: algorithm.routers[role]}, role)
        sides |= {param.sends for param in alone.params.values() if param.name == "threshold"}
    assert len(sides) == 1, "a request's threshold is parsed once for all roles"
