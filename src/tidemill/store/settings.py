"""Settings of the whole database, and the counters by which servers notice changes."""

from __future__ import annotations

from sqlalchemy import Connection, select

from tidemill.base.errors import config_error
from tidemill.store.names import KEYS_REQUIRED
from tidemill.store.tables.settings import CHANGES, SETTINGS
from tidemill.store.upsert import upsert

__all__ = ["IDENTITY", "KEYS_REQUIRED", "changed", "check_secret", "get", "put", "version"]

IDENTITY = "identity"
"""Counts changes of keys, users, teams and organisations."""

_SECRET = "secret.fingerprint"


def get(connection: Connection, name: str) -> str | None:
    """A setting's value."""
    return connection.execute(select(SETTINGS.c.value).where(SETTINGS.c.name == name)).scalar()


def put(connection: Connection, name: str, value: str) -> None:
    """Set a setting."""
    upsert(connection, SETTINGS, [{"name": name, "value": value}], set_=["value"])


def changed(connection: Connection, name: str) -> None:
    """Count a change, in the transaction that makes it."""
    upsert(connection, CHANGES, [{"name": name, "version": 1}], add=["version"])


def version(connection: Connection, name: str) -> int:
    """How many changes there were."""
    query = select(CHANGES.c.version).where(CHANGES.c.name == name)
    return connection.execute(query).scalar() or 0


def check_secret(connection: Connection, fingerprint: str) -> None:
    """Check that the database's keys were hashed by this secret; the first one to ask is noted.

    Raises:
        TidemillError: kind CONFIG.
    """
    found = get(connection, _SECRET)
    if found is None:
        put(connection, _SECRET, fingerprint)
    elif found != fingerprint:
        raise config_error(
            "secret",
            "the keys in the database were made with another secret: give every server the same "
            "TIDEMILL_SECRET, or the same file `secret` in TIDEMILL_HOME",
        )
