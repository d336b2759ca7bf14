"""What was used of a day or month before anything limited it, by the usage that was recorded."""

from __future__ import annotations

import calendar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from tidemill.contract.quotas import Level, Measure, Period, Unit
from tidemill.store.tables.usage import USAGE_HOURS
from tidemill.telemetry.record import Operation

_DAY = 86400
_COLUMNS = {
    Level.ORGANISATION: USAGE_HOURS.c.organisation_id,
    Level.TEAM: USAGE_HOURS.c.team_id,
    Level.USER: USAGE_HOURS.c.user_id,
    Level.KEY: USAGE_HOURS.c.key_id,
}
_SUMS: dict[Unit, ColumnElement[int]] = {
    Unit.REQUESTS: USAGE_HOURS.c.requests - USAGE_HOURS.c.failed,
    Unit.TOKENS: USAGE_HOURS.c.prompt + USAGE_HOURS.c.generated,
    Unit.MONEY: USAGE_HOURS.c.cost,
}
_LIMITED = (Operation.GENERATE.value, Operation.EMBED.value, Operation.SCORE.value)


def spent(connection: Connection, level: Level, subject: str, measure: Measure, period: int) -> int:
    """What a subject has used of a measure in a day or month, in the measure's unit.

    Args:
        connection: in a transaction.
        level, subject: whose; clients without a key have no usage of their own: 0.
        measure: of a day or a month.
        period: which, such as 20261126 or 202611.
    """
    since, until = _bounds(measure.period, period)
    hours = USAGE_HOURS.c
    conditions = [hours.hour >= since, hours.hour < until, hours.operation.in_(_LIMITED)]
    if level is not Level.SERVER:
        if not subject or subject.startswith("addr:"):
            return 0
        conditions.append(_COLUMNS[level] == subject)
    query = sa.select(sa.func.sum(_SUMS[measure.unit])).where(*conditions)
    return int(connection.execute(query).scalar() or 0)


def _bounds(kind: Period, period: int) -> tuple[int, int]:
    """The first second of a day or month of UTC, and that of the next."""
    if kind is Period.DAY:
        since = calendar.timegm((period // 10000, period // 100 % 100, period % 100, 0, 0, 0))
        return since, since + _DAY
    year, month = divmod(period, 100)
    days = calendar.monthrange(year, month)[1]
    since = calendar.timegm((year, month, 1, 0, 0, 0))
    return since, since + days * _DAY
