"""Databases for tests: a new one each, of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.store.location import Location, location_of


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """What `--database` gets: an empty database, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'tidemill.db'}"
        return
    with request.getfixturevalue("postgres").database() as url:
        yield url


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> Location:
    """The same, as the store takes it."""
    found = location_of(database_url, tmp_path)
    assert found is not None
    return found
