"""What servers have taken of limits: leases of portions, so that several share one limit exactly.

A server draws an amount, and what it has drawn counts as taken until it is returned. So whatever
happens to the server, no more than the limit is ever used. What a server that was killed had drawn
and not used stays taken: for the rest of the day or month, or until the bucket has refilled.
Places for concurrent requests are void once their server has not been seen for `VOID_MS`.
A day's or month's balance begins with what was used of it before, by the records of usage.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, func, select, text, update

from tidemill.contract.quotas import MEASURES, SOFT, Level, Limit, Period
from tidemill.store.spent import spent
from tidemill.store.tables.quotas import BALANCES, PLACES
from tidemill.store.upsert import upsert

VOID_MS = 15_000
MINUTE_MS = 60_000

_ALIVE = ""  # level of the row by which a server without places is seen

_NEW = 0
"""Time of a balance of which nothing has been drawn."""

KEPT_MS = 70 * 86400 * 1000
"""Balances of days and months that are older are removed."""


class Draw(msgspec.Struct, frozen=True):
    """What a server wants of one limit.

    Attributes:
        level, subject, measure, period: which; see `tables.quotas.BALANCES`. A soft limit's measure
            has the prefix `SOFT`.
        amount: the limit.
        want: to take; negative: to return.
        least: what is of use; where there is less, nothing is taken.
        forced: it has been used already: it is taken even beyond the limit.
        held: places that the server holds, of concurrent requests.
        excess: of a rate, charged first: what the bucket has refilled while the server held a part
            of it, beyond the amount of both.
    """

    level: str
    subject: str
    measure: str
    period: int
    amount: int
    want: int
    least: int = 0
    forced: bool = False
    held: int = 0
    excess: int = 0


class Drawn(msgspec.Struct, frozen=True):
    """What became of a `Draw`.

    Attributes:
        granted: taken for the server; what it returned is negative.
        taken: by all servers, after it; of a rate: what the bucket lacks.
    """

    granted: int
    taken: int


def draw(connection: Connection, server: str, now_ms: int, wants: Sequence[Draw]) -> list[Drawn]:
    """Take and return portions of limits, in one transaction; rows are locked in one order.

    Args:
        connection: in a writing transaction.
        server: whose places for concurrent requests these are.
        now_ms: this machine's wall clock; a database of several machines has its own.
        wants: no two of the same limit.
    """
    now = _clock(connection, now_ms)
    rows = [
        {
            **{"level": w.level, "subject": w.subject, "measure": w.measure},
            **{"period": w.period, "taken": 0, "at": now if w.period == 0 else _NEW},
        }
        for w in sorted(wants, key=_order)
    ]
    upsert(connection, BALANCES, rows)
    found = {}
    for want in sorted(wants, key=_order):
        found[_order(want)] = _draw(connection, server, now, want)
    return [found[_order(want)] for want in wants]


def begin(
    connection: Connection, level: Level, subject: str, limit: Limit, period: int, now_ms: int
) -> None:
    """A limit of a day or month is set: what was used of it already is taken.

    Args:
        connection: in a writing transaction.
        level, subject, limit: which.
        period: the day or month.
        now_ms: the wall clock.
    """
    used = spent(connection, level, subject, MEASURES[limit.measure], period)
    of = {"level": level.value, "subject": subject, "measure": limit.name, "period": period}
    upsert(connection, BALANCES, [{**of, "taken": 0, "at": now_ms}])
    connection.execute(
        update(BALANCES)
        .where(*(BALANCES.c[name] == value for name, value in of.items()))
        .where(BALANCES.c.taken < used)
        .values(taken=used)
    )


def renew(connection: Connection, server: str, now_ms: int) -> int:
    """Keep the server's places for concurrent requests; returns how many servers there are."""
    now = _clock(connection, now_ms)
    row = {"server": server, "level": _ALIVE, "subject": "", "held": 0, "at": now}
    upsert(connection, PLACES, [row], set_=["at"])
    connection.execute(update(PLACES).where(PLACES.c.server == server).values(at=now))
    connection.execute(delete(PLACES).where(PLACES.c.at < now - VOID_MS))
    servers = select(func.count(PLACES.c.server.distinct()))
    return connection.execute(servers).scalar() or 0


def leave(connection: Connection, server: str) -> None:
    """The server ends: its places are free."""
    connection.execute(delete(PLACES).where(PLACES.c.server == server))


def prune(connection: Connection, now_ms: int) -> None:
    """Remove balances of days and months that are long over."""
    connection.execute(
        delete(BALANCES).where(BALANCES.c.period != 0, BALANCES.c.at < now_ms - KEPT_MS)
    )


def _order(want: Draw) -> tuple[str, str, str, int]:
    return want.level, want.subject, want.measure, want.period


def _draw(connection: Connection, server: str, now: int, want: Draw) -> Drawn:
    key = (
        *(BALANCES.c.level == want.level, BALANCES.c.subject == want.subject),
        *(BALANCES.c.measure == want.measure, BALANCES.c.period == want.period),
    )
    row = connection.execute(
        select(BALANCES.c.taken, BALANCES.c.at).where(*key).with_for_update()
    ).one()
    period = MEASURES[want.measure.removeprefix(SOFT)].period
    if period is Period.CONCURRENT:
        return _draw_places(connection, server, now, want)
    taken, at = row.taken, now
    if period is Period.MINUTE:
        taken, at = _refilled(row.taken, row.at, now, want.amount)
        taken = max(taken, min(want.amount, taken + want.excess))
    elif row.at == _NEW:
        measure = MEASURES[want.measure.removeprefix(SOFT)]
        taken = spent(connection, Level(want.level), want.subject, measure, want.period)
        if want.forced:  # it has been used, and may be recorded
            taken = max(0, taken - want.want)
    granted = _granted(want, want.amount - taken)
    taken = max(0, taken + granted)
    connection.execute(update(BALANCES).where(*key).values(taken=taken, at=at))
    return Drawn(granted, taken)


def _refilled(taken: int, at: int, now: int, amount: int) -> tuple[int, int]:
    """What a bucket lacks now, and the time that this counts for: no fraction is lost."""
    if at > now + MINUTE_MS:  # the clock was wrong, and is right now
        return taken, now
    refilled = max(0, now - at) * amount // MINUTE_MS
    if refilled >= taken:
        return 0, max(now, at)
    return taken - refilled, at + (refilled * MINUTE_MS // amount if refilled else 0)


def _granted(want: Draw, free: int) -> int:
    if want.want <= 0 or want.forced:
        return want.want
    granted = min(want.want, max(0, free))
    return granted if granted >= want.least else 0


def _draw_places(connection: Connection, server: str, now: int, want: Draw) -> Drawn:
    of = (PLACES.c.level == want.level, PLACES.c.subject == want.subject)
    others = (
        connection.execute(
            select(func.sum(PLACES.c.held)).where(
                *of, PLACES.c.server != server, PLACES.c.at >= now - VOID_MS
            )
        ).scalar()
        or 0
    )
    granted = _granted(want, want.amount - int(others) - want.held)
    held = want.held + granted
    row = {"server": server, "level": want.level, "subject": want.subject}
    upsert(connection, PLACES, [{**row, "held": held, "at": now}], set_=["held", "at"])
    return Drawn(granted, int(others) + held)


def _clock(connection: Connection, now_ms: int) -> int:
    if connection.dialect.name == "sqlite":
        return now_ms
    epoch = text("SELECT extract(epoch FROM clock_timestamp()) * 1000")
    return int(connection.execute(epoch).scalar() or 0)
