"""Batches and their lines; every line gets exactly one result, whoever is killed meanwhile.

A result is written by an UPDATE of a line that has none, in the transaction that counts it. So a
line that two servers answer (one was taken for dead) or that is answered again after a kill keeps
the first result that was committed. Functions of one transaction each; see `Database`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from sqlalchemy import Connection, delete, func, insert, or_, select, update
from sqlalchemy.engine import RowMapping

from tidemill.store.tables.batches import BATCH_LINES, BATCHES


class Outcome(IntEnum):
    """What became of a line."""

    OPEN = 0
    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3
    EXPIRED = 4


class State(StrEnum):
    """Of a batch; the names are OpenAI's."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


UNFINISHED = (State.VALIDATING, State.IN_PROGRESS, State.FINALIZING, State.CANCELLING)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, as stored; see `store.tables.batches`."""

    id: str
    owner: str
    principal: Mapping[str, Any]
    dialect: str
    endpoint: str
    status: State
    input_file_id: str | None
    output_file_id: str | None
    error_file_id: str | None
    window_seconds: int
    metadata: Mapping[str, str] | None
    errors: Sequence[Mapping[str, Any]] | None
    times: Mapping[str, int]
    created: int
    expires: int
    output_seconds: int | None
    total: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch that has no result yet."""

    number: int
    custom_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a line.

    Attributes:
        number, custom_id: of the line.
        outcome: other than OPEN.
        status: of the HTTP answer; None without one.
        request_id: of the request; "" without one.
        answer: the body of the HTTP answer; empty without one.
    """

    number: int
    custom_id: str
    outcome: Outcome
    status: int | None = None
    request_id: str = ""
    answer: bytes = b""


def _batch(row: RowMapping) -> Batch:
    values: Any = row
    fields = {name: values[name] for name in Batch.__slots__}
    return Batch(**{**fields, "status": State(fields["status"])})


def create(connection: Connection, batch: Batch) -> None:
    """Store a new batch, without lines."""
    values = {name: getattr(batch, name) for name in Batch.__slots__}
    values["status"] = batch.status.value
    connection.execute(insert(BATCHES).values(**values, server=None, lease_ends=0))


def add_lines(connection: Connection, batch_id: str, lines: Iterable[Line]) -> None:
    """Add lines that have no result."""
    rows = [
        {
            "batch_id": batch_id,
            "number": line.number,
            "custom_id": line.custom_id,
            "outcome": Outcome.OPEN.value,
            "body": line.body,
        }
        for line in lines
    ]
    if rows:
        connection.execute(insert(BATCH_LINES), rows)


def clear_lines(connection: Connection, batch_id: str) -> None:
    """Remove the lines of a batch whose validation begins again."""
    connection.execute(delete(BATCH_LINES).where(BATCH_LINES.c.batch_id == batch_id))


def find(connection: Connection, owner: str | None, batch_id: str) -> Batch | None:
    """A batch of an owner, or of anybody."""
    query = select(BATCHES).where(BATCHES.c.id == batch_id)
    if owner is not None:
        query = query.where(BATCHES.c.owner == owner)
    row = connection.execute(query).mappings().first()
    return None if row is None else _batch(row)


def listed(
    connection: Connection,
    owner: str,
    dialect: str,
    *,
    after: str | None = None,
    before: str | None = None,
    limit: int = 20,
) -> list[Batch]:
    """Batches of an owner, the latest first; those behind the batch `after`, or before one."""
    query = select(BATCHES).where(BATCHES.c.owner == owner, BATCHES.c.dialect == dialect)
    created, identity = BATCHES.c.created, BATCHES.c.id
    for name, older in ((after, True), (before, False)):
        known = None if name is None else find(connection, owner, name)
        if known is None:
            continue
        if older:
            same, other = identity < known.id, created < known.created
        else:
            same, other = identity > known.id, created > known.created
        query = query.where(other | ((created == known.created) & same))
    backwards = before is not None and after is None
    order = (created, identity) if backwards else (created.desc(), identity.desc())
    rows = connection.execute(query.order_by(*order).limit(limit)).mappings().all()
    found = [_batch(row) for row in rows]
    return found[::-1] if backwards else found


def change(
    connection: Connection,
    batch_id: str,
    status: State,
    now: int,
    *,
    only: Iterable[State],
    **values: Any,
) -> bool:
    """Move a batch to another state, unless it is in none of the states `only`.

    Args:
        connection: in a transaction.
        batch_id: whose.
        status: the new state.
        now: seconds since 1970.
        only: the states in which it may be.
        values: further columns.

    Returns:
        Whether it was moved.
    """
    known = find(connection, None, batch_id)
    allowed = [state.value for state in only]
    if known is None or known.status.value not in allowed:
        return False
    times = {**known.times, status.value: now}
    moved = connection.execute(
        update(BATCHES)
        .where(BATCHES.c.id == batch_id, BATCHES.c.status.in_(allowed))
        .values(status=status.value, times=times, **values)
    )
    return moved.rowcount == 1


def claim(connection: Connection, server: str, now: int, lease: int, limit: int) -> list[Batch]:
    """Take unfinished batches that no server works on, the oldest first, and keep those of this
    server.

    Args:
        connection: in a transaction.
        server: identity of this server's process.
        now: seconds since 1970.
        lease: seconds for which nobody else takes them.
        limit: how many this server works on.
    """
    unfinished = BATCHES.c.status.in_([state.value for state in UNFINISHED])
    mine = BATCHES.c.server == server
    free = or_(mine, BATCHES.c.server.is_(None), BATCHES.c.lease_ends <= now)
    query = (
        select(BATCHES.c.id)
        .where(unfinished, free)
        .order_by(mine.desc(), BATCHES.c.created, BATCHES.c.id)
        .limit(limit)
    )
    found = []
    for identity in connection.execute(query).scalars().all():
        taken = connection.execute(
            update(BATCHES)
            .where(BATCHES.c.id == identity, free)
            .values(server=server, lease_ends=now + lease)
        )
        if taken.rowcount == 1:
            batch = find(connection, None, identity)
            if batch is not None:
                found.append(batch)
    return found


def any_unfinished(connection: Connection) -> bool:
    """Whether a batch has not ended."""
    query = select(BATCHES.c.id).where(BATCHES.c.status.in_([s.value for s in UNFINISHED]))
    return connection.execute(query.limit(1)).first() is not None


def let_go(connection: Connection, server: str) -> None:
    """Leave the batches of a server that stops to others."""
    connection.execute(
        update(BATCHES).where(BATCHES.c.server == server).values(server=None, lease_ends=0)
    )


def open_lines(connection: Connection, batch_id: str, after: int, limit: int) -> list[Line]:
    """Lines without a result, in order, of a number above `after`."""
    lines = BATCH_LINES.c
    query = (
        select(lines.number, lines.custom_id, lines.body)
        .where(
            lines.batch_id == batch_id,
            lines.outcome == Outcome.OPEN.value,
            lines.number > after,
        )
        .order_by(lines.number)
        .limit(limit)
    )
    return [Line(row.number, row.custom_id, row.body) for row in connection.execute(query)]


def record(connection: Connection, batch_id: str, results: Sequence[Result]) -> int:
    """Write the results of lines that have none; returns how many they were."""
    completed = failed = 0
    for result in results:
        written = connection.execute(
            update(BATCH_LINES)
            .where(
                BATCH_LINES.c.batch_id == batch_id,
                BATCH_LINES.c.number == result.number,
                BATCH_LINES.c.outcome == Outcome.OPEN.value,
            )
            .values(
                outcome=result.outcome.value,
                body=None,
                status=result.status,
                request_id=result.request_id,
                answer=result.answer,
            )
        ).rowcount
        if result.outcome is Outcome.SUCCEEDED:
            completed += written
        else:
            failed += written
    if completed or failed:
        connection.execute(
            update(BATCHES)
            .where(BATCHES.c.id == batch_id)
            .values(completed=BATCHES.c.completed + completed, failed=BATCHES.c.failed + failed)
        )
    return completed + failed


def close_rest(connection: Connection, batch_id: str, outcome: Outcome) -> int:
    """Give every line without a result this outcome; returns how many they were."""
    closed = connection.execute(
        update(BATCH_LINES)
        .where(BATCH_LINES.c.batch_id == batch_id, BATCH_LINES.c.outcome == Outcome.OPEN.value)
        .values(outcome=outcome.value, body=None)
    ).rowcount
    if closed and outcome is not Outcome.CANCELLED:
        connection.execute(
            update(BATCHES).where(BATCHES.c.id == batch_id).values(failed=BATCHES.c.failed + closed)
        )
    return closed


def results(
    connection: Connection,
    batch_id: str,
    outcomes: Iterable[Outcome],
    after: int,
    limit: int,
) -> list[Result]:
    """Results of a batch in the order of its lines, of numbers above `after`."""
    lines = BATCH_LINES.c
    query = (
        select(
            lines.number,
            lines.custom_id,
            lines.outcome,
            lines.status,
            lines.request_id,
            lines.answer,
        )
        .where(
            lines.batch_id == batch_id,
            lines.outcome.in_([outcome.value for outcome in outcomes]),
            lines.number > after,
        )
        .order_by(lines.number)
        .limit(limit)
    )
    return [
        Result(
            row.number,
            row.custom_id,
            Outcome(row.outcome),
            row.status,
            row.request_id or "",
            row.answer or b"",
        )
        for row in connection.execute(query)
    ]


def counts(connection: Connection, batch_id: str) -> dict[Outcome, int]:
    """Lines by outcome."""
    lines = BATCH_LINES.c
    query = (
        select(lines.outcome, func.count())
        .where(lines.batch_id == batch_id)
        .group_by(lines.outcome)
    )
    found = {Outcome(outcome): int(count) for outcome, count in connection.execute(query)}
    return {outcome: found.get(outcome, 0) for outcome in Outcome}


def remove(connection: Connection, batch_id: str) -> None:
    """Remove a batch and its lines."""
    connection.execute(delete(BATCH_LINES).where(BATCH_LINES.c.batch_id == batch_id))
    connection.execute(delete(BATCHES).where(BATCHES.c.id == batch_id))
