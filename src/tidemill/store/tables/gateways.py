"""What gateways that share a database tell each other."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, String, Table

from tidemill.store.tables import METADATA

GATEWAY_NOTES = Table(
    "gateway_notes",
    METADATA,
    Column("kind", String(16), primary_key=True),
    Column("name", String(160), primary_key=True),
    # The gateway that says it.
    Column("gateway", String(32), primary_key=True),
    Column("text", String(256), nullable=False),
    Column("amount", Float, nullable=False),
    # When it was said, in milliseconds.
    Column("at", BigInteger, nullable=False),
    Index(None, "at"),
)
