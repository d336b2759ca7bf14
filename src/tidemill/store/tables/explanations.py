"""Explanations of requests, where they are kept: one row a request, its document compressed."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, String, Table

from tidemill.store.tables import METADATA

EXPLANATIONS = Table(
    "explanations",
    METADATA,
    # Of the row; ids of requests are their clients', who may give several the same.
    Column("id", String(64), primary_key=True),
    Column("request_id", String(128), nullable=False),
    # Of its answer; "" for none.
    Column("answer_id", String(128), nullable=False),
    # Arrival, in milliseconds.
    Column("at", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index(None, "request_id"),
    Index(None, "answer_id"),
    Index(None, "at"),
)
