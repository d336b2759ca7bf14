"""Records of requests become sums by hour and rows of the audit log, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from tidemill.base.clock import wall
from tidemill.store.audit import append
from tidemill.store.chain import Row, detail_text
from tidemill.store.spool import Batch, Position
from tidemill.store.tables.usage import SPOOL_POSITIONS, USAGE_HOURS, USAGE_LOST, USAGE_REFUSALS
from tidemill.store.upsert import upsert
from tidemill.telemetry.record import Outcome, RequestRecord

HOUR = 3600
REQUEST = "request"
"""Kind of the audit log's rows of requests."""

OWNERS = ("key_id", "team_id", "organisation_id", "user_id")
SUMS = (
    *("requests", "cancelled", "failed", "prompt", "cached", "generated", "reasoning"),
    *("inputs", "computed", "cost", "energy"),
)

_decode = msgspec.msgpack.Decoder(RequestRecord).decode
# Of the row itself, or of no interest where it is as usual.
_LEFT_OUT = frozenset({"id", "at"})
_DEFAULTS = dict(
    zip(RequestRecord.__struct_fields__[2:], RequestRecord.__struct_defaults__, strict=True)
)


def records_of(batch: Batch) -> tuple[list[RequestRecord], int]:
    """The records of a batch, and how many of them cannot be read."""
    found, wrong = [], 0
    for data in batch.records:
        try:
            found.append(_decode(data))
        except msgspec.DecodeError:
            wrong += 1
    return found, wrong


def position_of(connection: Connection, spool: str) -> tuple[Position, int]:
    """How far a spool has been counted, and how many of its losses."""
    columns = SPOOL_POSITIONS.c
    found = connection.execute(
        sa.select(columns.segment, columns.place, columns.lost).where(columns.spool == spool)
    ).first()
    return (Position(), 0) if found is None else (Position(found[0], found[1]), found[2])


def count(
    connection: Connection,
    spool: str,
    batch: Batch,
    records: Sequence[RequestRecord],
    unreadable: int = 0,
) -> bool:
    """Count a batch and move the spool's position past it: both, or neither.

    Args:
        connection: in a transaction that writes.
        spool: its id, and that of its audit chain.
        batch: of which the records are.
        unreadable: how many of its records could not be read.

    Returns:
        False, and nothing is changed, where the batch does not begin at the spool's position: it
        has been counted before.
    """
    # First, so that of two transactions one waits here.
    upsert(connection, SPOOL_POSITIONS, [_position_row(spool, Position(), 0)])
    columns = SPOOL_POSITIONS.c
    found = connection.execute(
        sa.select(columns.segment, columns.place, columns.lost)
        .where(columns.spool == spool)
        .with_for_update()
    ).one()
    if (found.segment, found.place) != batch.start:
        return False
    upsert(connection, USAGE_HOURS, list(_hours(records)), add=SUMS)
    upsert(connection, USAGE_REFUSALS, list(_refusals(records)), add=("requests",))
    append(connection, spool, [_audit_row(record) for record in records])
    # The spool's losses are a sum since it was made; of a damaged part at least one was in it.
    lost = max(0, batch.lost - found.lost) + batch.damaged + unreadable
    if lost:
        hour = int(wall()) // HOUR * HOUR
        row = {"spool": spool, "hour": hour, "requests": lost}
        upsert(connection, USAGE_LOST, [row], add=("requests",))
    row = _position_row(spool, batch.end, max(batch.lost, found.lost))
    upsert(connection, SPOOL_POSITIONS, [row], set_=("segment", "place", "lost"))
    return True


def _position_row(spool: str, position: Position, lost: int) -> dict[str, Any]:
    return {"spool": spool, "segment": position.segment, "place": position.offset, "lost": lost}


def _hour_of(record: RequestRecord) -> int:
    return record.at // 1000 // HOUR * HOUR


def _hours(records: Iterable[RequestRecord]) -> Iterable[dict[str, Any]]:
    sums: dict[tuple[Any, ...], list[int]] = {}
    for r in records:
        if r.outcome is Outcome.REFUSED:
            continue
        key = (
            *(r.key, r.team, r.organisation, r.user),
            *(_hour_of(r), r.model, r.version, r.operation.value),
        )
        total = sums.get(key)
        if total is None:
            total = sums[key] = [0] * len(SUMS)
        total[0] += 1
        total[1] += r.outcome is Outcome.CANCELLED
        total[2] += r.outcome is Outcome.FAILED
        if r.charged:
            total[3] += r.prompt
            total[4] += r.cached
            total[5] += r.generated
            total[6] += r.reasoning
            total[7] += 0 if r.generated else r.choices
        total[8] += r.computed or 0
        total[9] += r.cost or 0
        total[10] += r.energy or 0
    names = (*OWNERS, "hour", "model", "version", "operation")
    # In order, so that two servers that share rows never wait for each other in a circle.
    for key in sorted(sums):
        yield dict(zip((*names, *SUMS), (*key, *sums[key]), strict=True))


def _refusals(records: Iterable[RequestRecord]) -> Iterable[dict[str, Any]]:
    sums: dict[tuple[Any, ...], int] = {}
    for r in records:
        if r.outcome is Outcome.REFUSED:
            owners = (r.key, r.team, r.organisation, r.user)
            key = (*owners, _hour_of(r), r.code[:64], r.model, r.version)
            sums[key] = sums.get(key, 0) + 1
    names = (*OWNERS, "hour", "code", "model", "version", "requests")
    for key in sorted(sums):
        yield dict(zip(names, (*key, sums[key]), strict=True))


def _audit_row(record: RequestRecord) -> Row:
    detail = {
        name: value
        for name, default in _DEFAULTS.items()
        if name not in _LEFT_OUT and (value := getattr(record, name)) != default
    }
    actor = record.key or record.client
    return Row(record.at, REQUEST, actor, record.id, detail_text(detail))
