"""Meters: what is left of one limit. Pure arithmetic; the clocks are arguments.

A bucket reads the monotonic clock, a window the wall clock. Amounts are whole tokens, requests, or
billionths of money.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from tidemill.contract.quotas import Measure, Period

NEVER = float("inf")
"""Seconds after which a request fits that exceeds the limit even alone."""

STEP_BACK = 3600.0
"""Seconds that the wall clock may step back without returning to an earlier period."""

SOON = 5.0
"""Seconds after which a request may fit that a day's or month's amount refuses only because
requests in flight hold their most."""

_MINUTE = 60.0
_FIRST_SECONDS = 2.0  # assumed duration of a request
_MEAN_WEIGHT = 1 / 16


class Now(NamedTuple):
    """One reading of both clocks, in seconds."""

    monotonic: float
    wall: float


class Meter(Protocol):
    """What is left of one limit for one subject."""

    @property
    def measure(self) -> Measure:
        """What is limited."""

    @property
    def amount(self) -> int:
        """The limit."""

    @property
    def soft(self) -> bool:
        """Whether it only warns."""

    def fits(self, need: int, now: Now) -> bool:
        """Whether `need` more may be taken now."""

    def take(self, need: int, now: Now) -> int:
        """Take an amount without checking; returns the period that it is charged to."""

    def end(self, taken: int, used: int, period: int, now: Now) -> None:
        """Of what was `taken` in `period`, `used` is charged (maybe more) and the rest is free."""

    def wait(self, need: int, now: Now) -> float:
        """Seconds until `need` can fit; `NEVER` where it exceeds the limit."""

    def remaining(self, now: Now) -> int:
        """What may be taken now; at least 0."""

    def reset(self, now: Now) -> float:
        """Seconds until the whole amount can be taken, if nothing more is."""

    def change(self, amount: int, now: Now) -> None:
        """Change the limit; what is used stays used."""

    def period_at(self, now: Now) -> int:
        """The period that is charged now."""

    def hear(self, taken: int, now: Now) -> None:
        """So much is taken of it now, by all who share it."""

    def retire(self) -> None:
        """The limit was lifted: only what holds some of it still ends."""


class Bucket:
    """A token bucket: it holds a minute's amount and refills continuously.

    Its level may be negative where more was used than was taken; it is repaid before anything
    more fits.
    """

    __slots__ = ("_at", "amount", "level", "measure", "soft")

    def __init__(self, measure: Measure, amount: int, now: Now, *, soft: bool = False) -> None:
        self.measure = measure
        self.amount = amount
        self.soft = soft
        self.level = float(amount)
        self._at = now.monotonic

    def fits(self, need: int, now: Now) -> bool:
        """See `Meter`."""
        self._refill(now)
        # A thousandth: the level is a sum of floats, and must not miss a whole number by rounding.
        return self.level + 1e-3 >= need

    def take(self, need: int, now: Now) -> int:
        """See `Meter`."""
        self._refill(now)
        self.level -= need
        if self.soft:
            self.level = max(self.level, -float(self.amount))
        return 0

    def end(self, taken: int, used: int, period: int, now: Now) -> None:
        """See `Meter`."""
        self._refill(now)
        self.level = min(float(self.amount), self.level + taken - used)

    def wait(self, need: int, now: Now) -> float:
        """See `Meter`."""
        if need > self.amount:
            return NEVER
        self._refill(now)
        return max(0.0, need - self.level) * _MINUTE / max(self.amount, 1)

    def remaining(self, now: Now) -> int:
        """See `Meter`."""
        self._refill(now)
        return max(0, int(self.level + 1e-3))

    def reset(self, now: Now) -> float:
        """See `Meter`."""
        self._refill(now)
        return (self.amount - self.level) * _MINUTE / max(self.amount, 1)

    def change(self, amount: int, now: Now) -> None:
        """See `Meter`."""
        self._refill(now)
        self.level += amount - self.amount
        self.amount = amount

    def period_at(self, now: Now) -> int:
        """A bucket has none: 0."""
        return 0

    def hear(self, taken: int, now: Now) -> None:
        """See `Meter`."""
        self.level = float(self.amount - taken)
        self._at = now.monotonic

    def retire(self) -> None:
        """Nothing to do."""

    def cap(self, most: int, now: Now) -> None:
        """It holds no more than `most` now."""
        self._refill(now)
        self.level = min(self.level, float(most))

    def _refill(self, now: Now) -> None:
        seconds = now.monotonic - self._at
        if seconds > 0.0:
            self._at = now.monotonic
            full = float(self.amount)
            self.level = min(full, self.level + seconds * full / _MINUTE)


class Gauge:
    """An amount in flight. The time until one ends is estimated from earlier ones."""

    __slots__ = ("_begun", "_seconds", "amount", "held", "measure", "soft")

    def __init__(self, measure: Measure, amount: int, now: Now, *, soft: bool = False) -> None:
        self.measure = measure
        self.amount = amount
        self.soft = soft
        self.held = 0
        self._seconds = _FIRST_SECONDS

    def fits(self, need: int, now: Now) -> bool:
        """See `Meter`."""
        return self.held + need <= self.amount

    def take(self, need: int, now: Now) -> int:
        """See `Meter`."""
        self.held += need
        return self.period_at(now)

    def end(self, taken: int, used: int, period: int, now: Now) -> None:
        """See `Meter`; nothing stays charged."""
        if taken:
            self.held -= taken
            self.note(period, now)

    def note(self, period: int, now: Now) -> None:
        """A request has ended that began in `period`."""
        self._seconds += _MEAN_WEIGHT * (now.monotonic - period / 1000 - self._seconds)

    def wait(self, need: int, now: Now) -> float:
        """See `Meter`."""
        if need > self.amount:
            return NEVER
        return max(0.1, self._seconds / max(self.held, 1))

    def remaining(self, now: Now) -> int:
        """See `Meter`."""
        return max(0, self.amount - self.held)

    def reset(self, now: Now) -> float:
        """See `Meter`."""
        return self._seconds if self.held else 0.0

    def change(self, amount: int, now: Now) -> None:
        """See `Meter`."""
        self.amount = amount

    def period_at(self, now: Now) -> int:
        """The millisecond of the monotonic clock."""
        return int(now.monotonic * 1000)

    def hear(self, taken: int, now: Now) -> None:
        """See `Meter`."""
        self.held = taken

    def retire(self) -> None:
        """Nothing to do."""


class Window:
    """An amount per day or month of UTC. What is taken is charged to the period it was taken in.

    A clock that steps back by less than `STEP_BACK` does not open the earlier period again; by
    more, the amounts of the earlier period count again (those of one are kept).
    """

    __slots__ = (
        *("_before", "_ends", "_of", "_starts", "amount"),
        *("in_flight", "measure", "period", "soft", "used"),
    )

    def __init__(self, measure: Measure, amount: int, now: Now, *, soft: bool = False) -> None:
        self.measure = measure
        self.amount = amount
        self.soft = soft
        self.used = 0
        """Taken in this period: used for certain, or reserved."""
        self.in_flight = 0
        """Of that, reserved by requests that have not ended."""
        self._of = PERIODS[measure.period]
        self.period, self._starts, self._ends = self._of(now.wall)
        self._before = (self.period, 0)

    def fits(self, need: int, now: Now) -> bool:
        """See `Meter`."""
        self._roll(now)
        return self.used + need <= self.amount

    def take(self, need: int, now: Now) -> int:
        """See `Meter`."""
        self._roll(now)
        self.used += need
        self.in_flight += need
        return self.period

    def end(self, taken: int, used: int, period: int, now: Now) -> None:
        """See `Meter`."""
        if period == self.period:
            self.used += used - taken
            self.in_flight -= taken
        elif period == self._before[0]:
            self._before = (period, self._before[1] + used - taken)

    def wait(self, need: int, now: Now) -> float:
        """See `Meter`."""
        if need > self.amount:
            return NEVER
        soon = need <= self.amount - self.used + self.in_flight
        return min(SOON, self.reset(now)) if soon else self.reset(now)

    def remaining(self, now: Now) -> int:
        """See `Meter`."""
        self._roll(now)
        return max(0, self.amount - self.used)

    def reset(self, now: Now) -> float:
        """See `Meter`."""
        self._roll(now)
        return max(0.0, self._ends - now.wall)

    def change(self, amount: int, now: Now) -> None:
        """See `Meter`."""
        self.amount = amount

    def period_at(self, now: Now) -> int:
        """The day's or month's number."""
        self._roll(now)
        return self.period

    def hear(self, taken: int, now: Now) -> None:
        """See `Meter`."""
        self._roll(now)
        self.used = taken

    def retire(self) -> None:
        """Nothing to do."""

    def _roll(self, now: Now) -> None:
        if self._starts - STEP_BACK <= now.wall < self._ends:
            return
        self.in_flight = 0
        used = (self.period, self.used)
        self.period, self._starts, self._ends = self._of(now.wall)
        self.used = self._before[1] if self._before[0] == self.period else 0
        self._before = used


def _day(wall: float) -> tuple[int, float, float]:
    start = datetime.fromtimestamp(wall, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    number = start.year * 10000 + start.month * 100 + start.day
    return number, start.timestamp(), (start + timedelta(days=1)).timestamp()


def _month(wall: float) -> tuple[int, float, float]:
    start = datetime.fromtimestamp(wall, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    end = (start + timedelta(days=32)).replace(day=1)
    return start.year * 100 + start.month, start.timestamp(), end.timestamp()


PERIODS: dict[Period, Callable[[float], tuple[int, float, float]]] = {
    Period.DAY: _day,
    Period.MONTH: _month,
}
"""From wall-clock seconds: the period's number (20261126, 202611), its first second, its end."""


def make_meter(measure: Measure, amount: int, now: Now, *, soft: bool) -> Meter:
    """The meter of a limit."""
    kinds: dict[Period, type[Bucket] | type[Gauge]] = {
        Period.MINUTE: Bucket,
        Period.CONCURRENT: Gauge,
    }
    return kinds.get(measure.period, Window)(measure, amount, now, soft=soft)
