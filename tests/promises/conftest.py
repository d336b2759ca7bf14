"""One real server, with the bundled model, for all promises that need no flags of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.real_server import RealServer


@pytest.fixture(scope="session")
def server() -> Iterator[RealServer]:
    with RealServer() as running:
        yield running
