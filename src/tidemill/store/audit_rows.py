"""The latest rows of the audit log, for people who look."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from tidemill.store.audit import ACTS
from tidemill.store.tables.audit import AUDIT_ROWS


def latest_rows(
    connection: Connection, limit: int, *, before: int | None = None, acts: bool = False
) -> list[dict[str, Any]]:
    """Rows of the audit log, the latest first.

    Args:
        limit: how many at most.
        before: milliseconds since the epoch; only earlier rows.
        acts: only what administrators did, no requests.
    """
    rows = AUDIT_ROWS.c
    asked = sa.select(
        rows.chain, rows.seq, rows.at, rows.kind, rows.actor, rows.subject, rows.detail
    )
    if before is not None:
        asked = asked.where(rows.at < before)
    if acts:
        asked = asked.where(rows.chain == ACTS)
    asked = asked.order_by(rows.at.desc(), rows.chain, rows.seq.desc()).limit(limit)
    return [
        {
            "chain": row.chain,
            "seq": row.seq,
            "at": row.at / 1000,
            "kind": row.kind,
            "actor": row.actor,
            "subject": row.subject,
            "detail": None if row.detail is None else msgspec.json.decode(row.detail),
        }
        for row in connection.execute(asked)
    ]
