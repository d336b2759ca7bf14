"""Explanations of requests that outlive a server."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, or_, select

from tidemill.base.ids import new_id
from tidemill.store.tables.explanations import EXPLANATIONS

PRUNED_AT_ONCE = 5_000

Row = dict[str, Any]


def row_of(document: dict[str, Any]) -> Row:
    """A document as a row."""
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return {
        "id": new_id("exp"),
        "request_id": document["id"],
        "answer_id": document["answer_id"] or "",
        "at": round(document["at"] * 1000),
        "document": zlib.compress(data.encode(), 1),
    }


def add(connection: Connection, rows: Sequence[Row]) -> None:
    """Keep some."""
    connection.execute(insert(EXPLANATIONS), rows)


def find(connection: Connection, name: str) -> dict[str, Any] | None:
    """The latest document of a request with this id, or whose answer has it."""
    if not name:
        return None
    columns = EXPLANATIONS.c
    query = (
        select(columns.document)
        .where(or_(columns.request_id == name, columns.answer_id == name))
        .order_by(columns.at.desc())
        .limit(1)
    )
    data = connection.execute(query).scalar()
    found: dict[str, Any] | None = None if data is None else json.loads(zlib.decompress(data))
    return found


def names(connection: Connection, start: str, most: int) -> list[str]:
    """Ids of requests and of answers that start so: at most so many of each, sorted."""
    columns = EXPLANATIONS.c
    found: set[str] = set()
    for column in (columns.request_id, columns.answer_id):
        # Databases differ in whether LIKE sees upper case, and `limit` may then count others.
        query = select(column).where(
            column.startswith(start, autoescape=True), func.substr(column, 1, len(start)) == start
        )
        found.update(connection.scalars(query.distinct().limit(most)))
    return sorted(found)


def prune(connection: Connection, before: int) -> int:
    """Remove those of requests that arrived before a time, in milliseconds; at most
    `PRUNED_AT_ONCE`. Returns how many."""
    columns = EXPLANATIONS.c
    old = select(columns.id).where(columns.at < before).order_by(columns.at)
    ids = [row.id for row in connection.execute(old.limit(PRUNED_AT_ONCE))]
    # In parts: a statement has a bounded number of parameters.
    for start in range(0, len(ids), 500):
        connection.execute(delete(EXPLANATIONS).where(columns.id.in_(ids[start : start + 500])))
    return len(ids)
