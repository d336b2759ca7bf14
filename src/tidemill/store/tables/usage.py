"""Usage by hour, and how far each spool has been counted."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table

from tidemill.store.tables import METADATA

_ID = String(64)


def _sum(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


USAGE_HOURS = Table(
    "usage_hours",
    METADATA,
    # Whose it is, "" for nobody's; ids, so that a new name changes nothing.
    Column("key_id", _ID, primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),  # its first second
    Column("model", String(256), primary_key=True),
    Column("version", _ID, primary_key=True),
    Column("operation", String(16), primary_key=True),
    Column("team_id", _ID, primary_key=True),
    Column("organisation_id", _ID, primary_key=True),
    Column("user_id", _ID, primary_key=True),
    _sum("requests"),
    _sum("cancelled"),
    _sum("failed"),
    # Charged tokens; `cached` counts among `prompt`, `reasoning` among `generated`.
    _sum("prompt"),
    _sum("cached"),
    _sum("generated"),
    _sum("reasoning"),
    _sum("inputs"),  # of embeddings and scores
    _sum("computed"),  # microseconds
    _sum("cost"),  # billionths of the currency's unit
    _sum("energy"),  # microjoules
    # Without it SQLite keeps every key twice.
    sqlite_with_rowid=False,
)
Index(None, USAGE_HOURS.c.hour)
Index(None, USAGE_HOURS.c.team_id, USAGE_HOURS.c.hour)

USAGE_REFUSALS = Table(
    "usage_refusals",
    METADATA,
    Column("key_id", _ID, primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("code", _ID, primary_key=True),  # of the error
    Column("model", String(256), primary_key=True),
    Column("version", _ID, primary_key=True),
    Column("team_id", _ID, primary_key=True),
    Column("organisation_id", _ID, primary_key=True),
    Column("user_id", _ID, primary_key=True),
    _sum("requests"),
    sqlite_with_rowid=False,
)
Index(None, USAGE_REFUSALS.c.hour)

USAGE_LOST = Table(
    "usage_lost",
    METADATA,
    # Requests that were not recorded, for want of room in a spool; the hour is that of the finding.
    Column("spool", _ID, primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    _sum("requests"),
)

SPOOL_POSITIONS = Table(
    "spool_positions",
    METADATA,
    Column("spool", _ID, primary_key=True),
    # Everything before has been counted, and is written in the same transaction as the counts.
    _sum("segment"),
    _sum("place"),
    _sum("lost"),  # of the spool's losses, those in usage_lost
)
