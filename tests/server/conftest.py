from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.local import LocalServer, serving


@pytest.fixture(scope="package")
def local() -> Iterator[LocalServer]:
    with serving() as started:
        yield started
