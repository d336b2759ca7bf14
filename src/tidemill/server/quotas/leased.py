"""Meters of limits that servers share: each spends what it has drawn from the store.

A request takes from the amount that was drawn ahead, in memory. What is drawn counts as taken for
everybody until it is returned, so servers together never exceed the limit, whatever ends one.

What is drawn of a rate is a part of its bucket: bucket and drawn together hold at most the amount.
The store's bucket refills while something is drawn; what it then has too much is charged with the
next draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemill.contract.quotas import Measure, Period
from tidemill.server.quotas.meters import SOON, Bucket, Gauge, Meter, Now

SHARE = 32
ONE = 16
"""While requests come, a server draws ahead one part in `SHARE` of a limit, or one request's need
where that is more and at most a part in `ONE`. It returns what is more than twice that, so that it
holds at most an eighth of a limit that no request of it has taken."""

_ACTIVE_ROUNDS = 5  # without a request, after which nothing is drawn ahead

_MINUTE = 60.0


class Want(NamedTuple):
    """What a meter wants of the store: see `store.balances.Draw`."""

    period: int
    want: int
    least: int
    forced: bool


class Leased:
    """A `Meter` over what was drawn.

    Args:
        bank: the whole limit, as the store's last word and the clock have it.
        touched: called with the meter when it has changed.

    Attributes:
        free: drawn and not taken by a request; negative: taken beyond what was drawn.
        heard: the store has been asked about this period.
    """

    __slots__ = (
        *("_active", "_bank", "_biggest", "_in_flight", "_look", "_taken", "_touched", "_waiting"),
        *("_outage", "_outage_at", "_owed", "_owed_sent", "_period", "_retired", "_stored"),
        *("free", "heard"),
    )

    def __init__(self, bank: Meter, now: Now, touched: Callable[[Leased], None]) -> None:
        self.free = 0
        self.heard = False
        self._bank = bank
        # The store's bucket as it is; `_bank` lacks what is drawn of a full one.
        self._stored = Bucket(bank.measure, bank.amount, now) if isinstance(bank, Bucket) else None
        self._touched = touched
        self._period = 0 if isinstance(bank, Gauge) else bank.period_at(now)
        self._taken = 0  # by requests, since the last round
        self._active = 0  # rounds for which something is drawn ahead
        self._biggest = 0  # need of one request, lately
        self._waiting: list[int] = []  # needs of requests that wait
        self._in_flight = 0
        self._outage = 0  # servers that share the limit without the store; 0: the store answers
        self._outage_at = 0.0
        self._owed = 0.0  # refilled without the store
        self._owed_sent = 0
        self._retired = False
        self._look = False

    @property
    def measure(self) -> Measure:
        """See `Meter`."""
        return self._bank.measure

    @property
    def amount(self) -> int:
        """See `Meter`."""
        return self._bank.amount

    @property
    def soft(self) -> bool:
        """See `Meter`."""
        return self._bank.soft

    # -- requests ----------------------------------------------------------------------------------

    def fits(self, need: int, now: Now) -> bool:
        """See `Meter`."""
        self._roll(now)
        return self.remaining(now) >= need if self.soft else self.free >= need

    def may_grow(self, need: int, now: Now) -> bool:
        """Whether the limit has room for `need`, for all that is known, so that it can be drawn."""
        self._roll(now)
        fits = self._bank.fits(need - self.free, now) if self.heard else True
        return fits and need <= self.amount

    def want(self, need: int) -> None:
        """A request waits for `need`."""
        self._waiting.append(need)
        self._touched(self)

    def look(self) -> None:
        """A request was refused: see whether other servers have returned something."""
        self._look = True
        self._touched(self)

    def take(self, need: int, now: Now) -> int:
        """See `Meter`."""
        self._roll(now)
        self.free -= need
        self._in_flight += need
        self._taken += need
        self._biggest = max(self._biggest, need)
        self._touched(self)
        return self._bank.period_at(now)

    def end(self, taken: int, used: int, period: int, now: Now) -> None:
        """See `Meter`."""
        self._roll(now)
        self._in_flight -= taken
        if isinstance(self._bank, Gauge):
            used = 0
            if taken:
                self._bank.note(period, now)
        elif period != self._period:
            return  # what was drawn of a day that is over is of no use to anybody
        self.free += taken - used
        if self._stored is not None:
            self.free = min(self.free, self.amount)
        self._touched(self)

    def wait(self, need: int, now: Now) -> float:
        """See `Meter`."""
        self._roll(now)
        return self._bank.wait(need, now) if need > self.amount else self._wait(need, now)

    def _wait(self, need: int, now: Now) -> float:
        missing = need - self.free
        if self._bank.fits(missing, now):
            return 0.0
        seconds = self._bank.wait(min(missing, need), now)
        if self._bank.measure.period in (Period.DAY, Period.MONTH):
            soon = self._bank.fits(missing - self._in_flight, now)
            return min(SOON, seconds) if soon else seconds
        return seconds

    def remaining(self, now: Now) -> int:
        """See `Meter`."""
        self._roll(now)
        return min(self.amount, max(0, self.free + self._bank.remaining(now)))

    def reset(self, now: Now) -> float:
        """See `Meter`."""
        self._roll(now)
        seconds = self._bank.reset(now)
        if self._stored is None:
            return seconds
        return max(0.0, seconds - self.free * _MINUTE / max(self.amount, 1))

    def change(self, amount: int, now: Now) -> None:
        """See `Meter`."""
        self._bank.change(amount, now)
        if self._stored is not None:
            self._stored.change(amount, now)
        self._touched(self)

    def retire(self) -> None:
        """See `Meter`: what was drawn is returned."""
        self._retired = True
        self._touched(self)

    def period_at(self, now: Now) -> int:
        """See `Meter`."""
        return self._bank.period_at(now)

    def hear(self, taken: int, now: Now) -> None:
        """See `Meter`."""
        self._bank.hear(taken, now)
        if self._stored is not None:
            self._stored.hear(taken, now)

    # -- the store ---------------------------------------------------------------------------------

    def draw(self, now: Now) -> Want | None:
        """What to take from the store or return to it in this round; None: nothing."""
        self._roll(now)
        self._active = _ACTIVE_ROUNDS if self._taken else max(0, self._active - 1)
        if not self._active:
            self._biggest = 0
        self._taken = 0
        used = max(0, -self.free)
        if used or self._owed >= 1:
            self._owed_sent = int(self._owed)
            self._owed -= self._owed_sent
            return Want(self._period, used + self._owed_sent, 0, forced=True)
        waiting, self._waiting = self._waiting, []
        look, self._look = self._look, False
        self._biggest = max(self._biggest, *waiting, 0)
        if self.soft or self._retired:  # nothing is drawn ahead
            return self.rest(now)
        ahead = self._biggest if self._biggest * ONE <= self.amount else 0
        target = max(self.amount // SHARE, ahead) if self._active or waiting else 0
        if waiting:
            more = sum(waiting) + target - self.free
            least = max(0, min(waiting) - self.free)
            return Want(self._period, more, least, forced=False) if more > 0 else None
        if 2 * self.free < target:
            return Want(self._period, target - self.free, 0, forced=False)
        if self.free > 2 * target:
            return Want(self._period, target - self.free, 0, forced=False)
        return Want(self._period, 0, 0, forced=False) if look else None

    @property
    def idle(self) -> bool:
        """Nothing is drawn, wanted or owed."""
        drawn = self.free or self._in_flight or self._owed >= 1
        asked = self._waiting or self._look
        return not (drawn or asked or self._active or self._taken)

    @property
    def gone(self) -> bool:
        """It is retired and needs the store no more."""
        return self._retired and self.idle

    def rest(self, now: Now) -> Want | None:
        """Return all that is free."""
        self._roll(now)
        return Want(self._period, -self.free, 0, forced=self.free < 0) if self.free else None

    @property
    def waits(self) -> bool:
        """A request waits for more."""
        return bool(self._waiting)

    @property
    def held(self) -> int:
        """Drawn, whether requests have taken it or not."""
        return self.free + self._in_flight

    def excess(self, now: Now) -> int:
        """Of a rate: what the store's bucket has refilled beyond the amount less what was drawn."""
        self._roll(now)
        if self._stored is None or not isinstance(self._bank, Bucket):
            return 0
        self._stored.cap(self.amount, now)
        return max(0, int(self._stored.level - self._bank.level + 1e-3))

    def sent(self, want: Want) -> None:
        """The draw is on its way: what it returns cannot be spent any more."""
        if want.want < 0:
            self.free += want.want

    def drawn(self, want: Want, granted: int, taken: int, now: Now) -> None:
        """The store has answered."""
        self._roll(now)
        self._outage = 0
        if want.period != self._period:
            return
        self.heard = True
        if granted > 0:
            self.free += granted - self._owed_sent
        self._owed_sent = 0
        self.hear(taken, now)

    def lost(self, want: Want, servers: int, now: Now) -> None:
        """The store has not answered: what was returned may count as returned or not, so that it
        is given up; rates and places are shared equally until it answers."""
        self._owed, self._owed_sent = self._owed + self._owed_sent, 0
        if self._outage == 0:
            self._outage_at = now.monotonic
        self._outage = max(1, servers)
        if isinstance(self._bank, Gauge):
            self.free = max(self.free, max(1, self.amount // self._outage) - self._in_flight)

    def _roll(self, now: Now) -> None:
        period = self._bank.measure.period
        if period is Period.MINUTE:
            if self._outage:
                self._refill(now)
            if isinstance(self._bank, Bucket):
                self._bank.cap(self.amount - max(0, self.free), now)
        elif period is not Period.CONCURRENT:
            current = self._bank.period_at(now)
            if current != self._period:
                self._period, self.free, self.heard = current, 0, False

    def _refill(self, now: Now) -> None:
        """Without the store a bucket refills here, by this server's share."""
        share = self.amount / self._outage
        seconds = now.monotonic - self._outage_at
        more = int(min(seconds * share / _MINUTE, max(0.0, share - self.free)))
        if more > 0 or seconds > _MINUTE:
            self._outage_at = now.monotonic
            self.free += more
            self._owed += more
