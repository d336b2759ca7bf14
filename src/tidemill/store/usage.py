"""Reports of usage: sums of the hourly rows, by what the reader wants to tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Table

from tidemill.base.errors import bad_request
from tidemill.store.count import HOUR, SUMS
from tidemill.store.tables.identity import KEYS, ORGANISATIONS, TEAMS, USERS
from tidemill.store.tables.usage import USAGE_HOURS, USAGE_LOST, USAGE_REFUSALS

DAY = 24 * HOUR
MAX_ROWS = 100_000

CURRENCY = "usage.currency"
"""Setting: in which the costs are."""

_OWNERS: Mapping[str, tuple[str, Table]] = {
    "key": ("key_id", KEYS),
    "team": ("team_id", TEAMS),
    "organisation": ("organisation_id", ORGANISATIONS),
    "user": ("user_id", USERS),
}
_TIMES = {"hour": HOUR, "day": DAY}
_PLAIN = ("model", "version", "operation")
DIMENSIONS = (*_OWNERS, *_PLAIN, *_TIMES)
"""What reports can be by."""

FOREVER = 2**40
"""No second of any report lies later."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked.

    Attributes:
        since, until: seconds since the epoch; of hours that lie in both, or partly, all counts.
        by: dimensions, see `DIMENSIONS`.
        keys, teams, organisations, users: ids; None: all.
        models: names; None: all.
        operations: see `telemetry.record.Operation`; None: all.
    """

    since: int = 0
    until: int = FOREVER
    by: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    teams: tuple[str, ...] | None = None
    organisations: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    operations: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Raise BAD_REQUEST for a dimension that there is not."""
        for one in self.by:
            if one not in DIMENSIONS:
                raise bad_request(
                    "by", f"usage is by {', '.join(DIMENSIONS)}; {one[:64]!r} is none of them"
                )


class UsageRow(msgspec.Struct, kw_only=True):
    """Sums of one group.

    Attributes:
        group: dimension -> value: an id, a name, or the first second of an hour or day.
        names: of ids, the names that those have now; absent where they are gone.
        requests: that were answered or given up; refused ones are not among them.
        refused: error code -> requests.
        prompt, cached, generated, reasoning: charged tokens.
        inputs: of embeddings and scores.
        computed: microseconds.
        cost: billionths of the currency's unit.
        energy: microjoules.
    """

    group: dict[str, Any]
    names: dict[str, str] = {}
    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    reasoning: int = 0
    inputs: int = 0
    computed: int = 0
    cost: int = 0
    energy: int = 0
    refused: dict[str, int] = {}


def usage(connection: Connection, query: Query, most: int = MAX_ROWS) -> list[UsageRow]:
    """The sums of each group, in the groups' order.

    Raises:
        TidemillError: kind BAD_REQUEST: there are more groups than `most`.
    """
    found: dict[tuple[Any, ...], UsageRow] = {}

    def row_of(values: Sequence[Any]) -> UsageRow:
        key = tuple(values[: len(query.by)])
        row = found.get(key)
        if row is None:
            row = found[key] = UsageRow(group=dict(zip(query.by, key, strict=True)))
        return row

    sums = [sa.func.sum(USAGE_HOURS.c[name]) for name in SUMS]
    for values in _rows(connection, _grouped(USAGE_HOURS, query, sums), most):
        row = row_of(values)
        for name, value in zip(SUMS, values[len(query.by) :], strict=True):
            setattr(row, name, int(value))
    if query.operations is None and "operation" not in query.by:
        refusals = USAGE_REFUSALS.c
        columns = [refusals.code, sa.func.sum(refusals.requests)]
        statement = _grouped(USAGE_REFUSALS, query, columns, more=[refusals.code])
        for values in _rows(connection, statement, most):
            code, count = values[len(query.by) :]
            row_of(values).refused[code] = int(count)
    rows = [found[key] for key in sorted(found)]
    _name(connection, query.by, rows)
    return rows


def total_of(rows: Iterable[UsageRow]) -> UsageRow:
    """The sum of all groups."""
    total = UsageRow(group={})
    for row in rows:
        for name in SUMS:
            setattr(total, name, getattr(total, name) + getattr(row, name))
        for code, count in row.refused.items():
            total.refused[code] = total.refused.get(code, 0) + count
    return total


def lost(connection: Connection, since: int = 0, until: int = FOREVER) -> int:
    """Requests that were answered and are in no report; by the time when that was found."""
    hours = USAGE_LOST.c
    query = sa.select(sa.func.sum(hours.requests)).where(
        hours.hour >= since // HOUR * HOUR, hours.hour < until
    )
    return int(connection.execute(query).scalar() or 0)


def ids_named(connection: Connection, kind: str, names: Iterable[str]) -> tuple[str, ...]:
    """Ids from ids or names of keys, teams, organisations or users.

    Keys of key files have no id; theirs is ``key:NAME``.

    Raises:
        TidemillError: kind BAD_REQUEST: there is none of that name.
    """
    column, table = _OWNERS[kind]
    found: list[str] = []
    for name in names:
        known = sa.select(table.c.id).where(sa.or_(table.c.id == name, table.c.name == name))
        ids = list(connection.execute(known).scalars())
        if not ids:
            # Removed since, or of a key file.
            used = USAGE_HOURS.c[column]
            alias = (name, f"key:{name}") if kind == "key" else (name,)
            ids = list(
                connection.execute(sa.select(used).where(used.in_(alias)).limit(1)).scalars()
            )
        if not ids:
            raise bad_request(kind, f"there is no {kind} {name[:64]!r}")
        found += ids
    return tuple(found)


def _rows(connection: Connection, statement: sa.Select[Any], most: int) -> Sequence[Any]:
    found = connection.execute(statement.limit(most + 1)).all()
    if len(found) > most:
        raise bad_request("by", f"the report has more than {most} rows; ask for less at once")
    return found


def _grouped(
    table: Table,
    query: Query,
    columns: Sequence[ColumnElement[Any]],
    more: Sequence[ColumnElement[Any]] = (),
) -> sa.Select[Any]:
    groups = [_dimension(table, name) for name in query.by]
    statement = sa.select(*groups, *columns).where(*_conditions(table, query))
    if groups or more:
        return statement.group_by(*groups, *more)
    # Without groups there would be a row of nothing where there is none.
    return statement.having(sa.func.count() > 0)


def _dimension(table: Table, name: str) -> ColumnElement[Any]:
    if name in _TIMES:
        seconds = _TIMES[name]
        hour = table.c.hour
        # Written out: as a parameter it would not be the same in SELECT and GROUP BY.
        return hour if seconds == HOUR else hour - hour % sa.literal_column(str(seconds))
    return table.c[_OWNERS[name][0] if name in _OWNERS else name]


def _conditions(table: Table, query: Query) -> list[ColumnElement[bool]]:
    columns = table.c
    conditions = [columns.hour >= query.since // HOUR * HOUR, columns.hour < query.until]
    for name, values in (
        *(("key_id", query.keys), ("team_id", query.teams), ("user_id", query.users)),
        *(("organisation_id", query.organisations), ("model", query.models)),
        ("operation", query.operations),
    ):
        if values is not None:
            column = columns[name]
            conditions.append(column == values[0] if len(values) == 1 else column.in_(values))
    return conditions


def _name(connection: Connection, by: Sequence[str], rows: Sequence[UsageRow]) -> None:
    """Add the names of ids."""
    for kind in by:
        if kind not in _OWNERS:
            continue
        _, table = _OWNERS[kind]
        ids = sorted({row.group[kind] for row in rows} - {""})
        names: dict[str, str] = {}
        for start in range(0, len(ids), 500):
            some = sa.select(table.c.id, table.c.name).where(
                table.c.id.in_(ids[start : start + 500])
            )
            names.update((row.id, row.name) for row in connection.execute(some))
        for row in rows:
            name = names.get(row.group[kind])
            if name is not None:
                row.names[kind] = name
