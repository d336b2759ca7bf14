"""`--database`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.base.errors import TidemillError
from tidemill.store.location import location_of

HOME = Path("/home/x")


def test_default_lies_in_the_home() -> None:
    found = location_of(None, HOME)
    assert found is not None
    assert (found.url, found.path) == ("sqlite+aiosqlite:////home/x/tidemill.db", HOME / FILE)
    assert location_of("none", HOME) is None


FILE = "tidemill.db"


def test_a_password_is_kept_and_never_shown() -> None:
    found = location_of("postgres://ann:p%40ss@db:5433/tm?sslmode=require", HOME)
    assert found is not None
    assert found.url == "postgresql+asyncpg://ann:p%40ss@db:5433/tm?ssl=require"
    assert "ss" not in f"{found!r} {found.shown}".replace("postgresql", "")


@pytest.mark.parametrize(
    "text",
    [
        *("mysql://x:hunter2@y/z", "sqlite://", "sqlite:///", "sqlite:///:memory:", "/a/hunter2"),
        *("postgresql://u:hunter2@h", "postgresql://u:hunter2@h:x/y", "sqlite:////a?hunter2=1"),
    ],
)
def test_what_is_no_database_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(TidemillError) as caught:
        location_of(text, HOME)
    assert caught.value.param == "database"
    assert "hunter2" not in caught.value.message
