"""Limits on what clients use, and what is used of them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, String, Table

from tidemill.store.tables import METADATA

# The limits that subjects have of their own. A subject is an organisation, a team, a user or a key
# by its id, or the server (""); it need not exist any more.
LIMITS = Table(
    "limits",
    METADATA,
    Column("level", String(16), primary_key=True),
    Column("subject", String(256), primary_key=True),
    Column("measure", String(32), primary_key=True),
    Column("soft", Boolean, primary_key=True),
    # In the measure's unit; money in billionths. None: no limit, although there is a default.
    Column("amount", BigInteger, nullable=True),
)

# What servers have taken of each limit, used or leased.
BALANCES = Table(
    "quota_balances",
    METADATA,
    Column("level", String(16), primary_key=True),
    Column("subject", String(256), primary_key=True),
    Column("measure", String(32), primary_key=True),
    # 20261126 of a day, 202611 of a month; else 0.
    Column("period", BigInteger, primary_key=True),
    # Of a rate: what its bucket lacked at the time `at`.
    Column("taken", BigInteger, nullable=False),
    # Milliseconds since the epoch of the last change.
    Column("at", BigInteger, nullable=False),
)

# Places for concurrent requests that a server holds; void once it is not seen any more.
PLACES = Table(
    "quota_places",
    METADATA,
    Column("server", String(64), primary_key=True),
    Column("level", String(16), primary_key=True),
    Column("subject", String(256), primary_key=True),
    Column("held", BigInteger, nullable=False),
    # Milliseconds since the epoch when the server renewed it.
    Column("at", BigInteger, nullable=False),
)
