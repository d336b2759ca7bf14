"""Records of requests become sums by hour and rows of the audit log, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from tidemill.base.clock import wall
from tidemill.store.audit import append
from tidemill.store.chain import Row
from tidemill.store.spool import Batch, Position
from tidemill.store.tables.usage import SPOOL_POSITIONS, USAGE_HOURS, USAGE_LOST, USAGE_REFUSALS
from tidemill.store.upsert import upsert
from tidemill.telemetry.record import Operation, Outcome, RequestRecord

HOUR = 3600
REQUEST = "request"
"""Kind of the audit log's rows of requests."""

OWNERS = ("key_id", "team_id", "organisation_id", "user_id")
SUMS = (
    *("requests", "cancelled", "failed", "prompt", "cached", "generated", "reasoning"),
    *("inputs", "computed", "cost", "energy"),
)

_decode = msgspec.msgpack.Decoder(RequestRecord).decode
_detail = msgspec.json.Encoder().encode
_ADMIN, _GENERATE = Operation.ADMIN.value, Operation.GENERATE.value
_FINISHED, _REFUSED = Outcome.FINISHED.value, Outcome.REFUSED.value


class Tally:
    """Records as the rows that they become; made in parts, outside the transaction."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._hours: dict[tuple[Any, ...], list[int]] = {}
        self._refusals: dict[tuple[Any, ...], int] = {}
        self._audited: list[Row] = []

    def add(self, records: Iterable[bytes]) -> None:
        """Count some, as they lie in a spool."""
        for data in records:
            try:
                record = _decode(data)
            except msgspec.DecodeError:
                self.unreadable += 1
                continue
            kind, subject = REQUEST, record.id
            if record.operation == _ADMIN:
                kind, subject = f"{record.method} {record.route}", record.subject
            elif record.outcome == _REFUSED:
                self._refused(record)
            else:
                self._count(record)
            actor = record.key or record.client
            self._audited.append(Row(record.at, kind, actor, subject, _detail(record).decode()))

    def _count(self, r: RequestRecord) -> None:
        hour = r.at // 1000 // HOUR * HOUR
        key = r.key, r.team, r.organisation, r.user, hour, r.model, r.version, r.operation
        total = self._hours.get(key)
        if total is None:
            total = self._hours[key] = [0] * len(SUMS)
        total[0] += 1
        if r.outcome != _FINISHED:
            total[1] += r.outcome == Outcome.CANCELLED
            total[2] += r.outcome == Outcome.FAILED
        if r.charged:
            total[3] += r.prompt
            total[4] += r.cached
            total[5] += r.generated
            total[6] += r.reasoning
            total[7] += 0 if r.operation == _GENERATE else r.choices
        total[8] += r.computed or 0
        total[9] += r.cost or 0
        total[10] += r.energy or 0

    def _refused(self, r: RequestRecord) -> None:
        owners = (r.key, r.team, r.organisation, r.user)
        key = (*owners, r.at // 1000 // HOUR * HOUR, r.code[:64], r.model, r.version)
        self._refusals[key] = self._refusals.get(key, 0) + r.repeats

    def write(self, connection: Connection, chain: str) -> None:
        """Write the rows."""
        # In order, so that two servers that share rows never wait for each other in a circle.
        named: tuple[str, ...] = (*OWNERS, "hour", "model", "version", "operation", *SUMS)
        hours = (
            dict(zip(named, (*key, *sums), strict=True))
            for key, sums in sorted(self._hours.items())
        )
        upsert(connection, USAGE_HOURS, list(hours), add=SUMS)
        named = (*OWNERS, "hour", "code", "model", "version", "requests")
        refusals = (
            dict(zip(named, (*key, count), strict=True))
            for key, count in sorted(self._refusals.items())
        )
        upsert(connection, USAGE_REFUSALS, list(refusals), add=("requests",))
        append(connection, chain, self._audited)


def position_of(connection: Connection, spool: str) -> tuple[Position, int]:
    """How far a spool has been counted, and how many of its losses."""
    columns = SPOOL_POSITIONS.c
    found = connection.execute(
        sa.select(columns.segment, columns.place, columns.lost).where(columns.spool == spool)
    ).first()
    return (Position(), 0) if found is None else (Position(found[0], found[1]), found[2])


def count(connection: Connection, spool: str, batch: Batch, tally: Tally) -> bool:
    """Count a batch and move the spool's position past it: both, or neither.

    Args:
        connection: in a transaction that writes.
        spool: its id, and that of its audit chain.
        batch: what is counted.
        tally: of its records.

    Returns:
        False, and nothing is changed, where the batch does not begin at the spool's position: it
        has been counted before.
    """
    columns = SPOOL_POSITIONS.c
    locked = (
        sa.select(columns.segment, columns.place, columns.lost)
        .where(columns.spool == spool)
        .with_for_update()
    )
    found = connection.execute(locked).first()
    if found is None:  # of two transactions that begin, one waits here
        upsert(connection, SPOOL_POSITIONS, [_position_row(spool, Position(), 0)])
        found = connection.execute(locked).one()
    if (found.segment, found.place) != batch.start:
        return False
    tally.write(connection, spool)
    # The spool's losses are a sum since it was made; of a damaged part at least one was in it.
    lost = max(0, batch.lost - found.lost) + batch.damaged + tally.unreadable
    if lost:
        hour = int(wall()) // HOUR * HOUR
        row = {"spool": spool, "hour": hour, "requests": lost}
        upsert(connection, USAGE_LOST, [row], add=("requests",))
    row = _position_row(spool, batch.end, max(batch.lost, found.lost))
    upsert(connection, SPOOL_POSITIONS, [row], set_=("segment", "place", "lost"))
    return True


def _position_row(spool: str, position: Position, lost: int) -> dict[str, Any]:
    return {"spool": spool, "segment": position.segment, "place": position.offset, "lost": lost}
