"""The routers of CITER and Co-LLM that are shipped are those of the embedded models."""
from __future__ import annotations

import pytest

from tokenrouter.paths import resolve
from zoo import weights
from zoo.offline import context_of
from zoo.setup import Setup


@pytest.fixture(scope="module", params=["citer", "collm"])
def setup(request: pytest.FixtureRequest) -> Setup:
    return Setup.compose([f"algo={request.param}", "models=tiny"])


def test_weights_are_small_and_of_these_models(setup: Setup) -> None:
    path = setup.config["algo"]["weights"]
    assert resolve(path).stat().st_size < 2_000_000
    _, metadata = weights.load(path, setup.algorithm.name)
    assert "router" in metadata["data"]
    for role in setup.algorithm.roles:
        weights.check_model(path, metadata, role, context_of(setup.engine(role, 1, 64)))
