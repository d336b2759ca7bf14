"""INSERT ... ON CONFLICT DO UPDATE, which both databases have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Insert, Table


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[dict[str, Any]],
    *,
    set_: Sequence[str] = (),
    add: Sequence[str] = (),
) -> None:
    """Insert rows; where one with its primary key exists, change that one instead.

    Args:
        connection: in a transaction.
        table: has a primary key.
        rows: with the same columns each, the whole primary key among them. No two of the same key.
        set_: columns that get the new row's value.
        add: columns to which the new row's value is added.
    """
    if rows:
        statement = _statement(connection.dialect.name, table, tuple(set_), tuple(add))
        connection.execute(statement, list(rows))


@cache
def _statement(dialect: str, table: Table, set_: tuple[str, ...], add: tuple[str, ...]) -> Insert:
    """Made once: that takes ten times as long as a row."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    statement = insert(table)
    new = statement.excluded
    changes: dict[str, ColumnElement[Any]] = {name: new[name] for name in set_}
    changes.update((name, table.c[name] + new[name]) for name in add)
    keys = [column.name for column in table.primary_key]
    if changes:
        return statement.on_conflict_do_update(index_elements=keys, set_=changes)
    return statement.on_conflict_do_nothing(index_elements=keys)
