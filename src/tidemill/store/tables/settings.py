"""Facts of the whole database, and counters by which servers notice changes."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, String, Table

from tidemill.store.tables import METADATA

SETTINGS = Table(
    "settings",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("value", String(1024), nullable=False),
)

CHANGES = Table(
    "changes",
    METADATA,
    # What changed ("identity"); every transaction that changes it adds 1, and servers that keep a
    # copy in memory compare the number.
    Column("name", String(64), primary_key=True),
    Column("version", BigInteger, nullable=False),
)
