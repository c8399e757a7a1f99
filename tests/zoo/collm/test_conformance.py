"""The shipped router and the runtime under it keep the rules of all algorithms."""
from __future__ import annotations

from zoo.conformance import conformance

test_collm = conformance("collm", models="tiny")
