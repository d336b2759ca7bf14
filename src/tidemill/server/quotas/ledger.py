"""The ledger: one atomic reservation over all levels, settled exactly once.

Every check and every take of one reservation happen in one call on the event loop, so concurrent
requests cannot overshoot together. Hard budgets are charged the highest possible cost until the
request has ended; then the rest is free again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.contract.quotas import Measure, Period, Unit
from tidemill.server.quotas.account import Account
from tidemill.server.quotas.meters import Meter, Now


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request may use.

    Attributes:
        requests: 1; 0 for a part of a request that is counted already.
        prompt: its tokens, each once whatever the number of choices.
        expected: tokens that it is expected to generate, of all choices.
        most: tokens that it can generate at most, of all choices.
        money: its highest price, in billionths of the currency unit.
    """

    requests: int
    prompt: int
    expected: int
    most: int
    money: int

    def of(self, measure: Measure) -> int:
        """What is reserved of a measure: of a rate the estimate, of a budget the most."""
        if measure.unit is Unit.REQUESTS:
            return self.requests
        if measure.unit is Unit.MONEY:
            return self.money
        return self.prompt + (self.expected if measure.period is Period.MINUTE else self.most)


@dataclass(frozen=True, slots=True)
class Used:
    """What a request is charged in the end."""

    requests: int = 0
    tokens: int = 0
    money: int = 0

    def of(self, measure: Measure) -> int:
        """What is charged of a measure."""
        if measure.unit is Unit.REQUESTS:
            return self.requests
        return self.money if measure.unit is Unit.MONEY else self.tokens


NOTHING = Used()


class Exceeded(Exception):
    """A request does not fit.

    Attributes:
        account, meter: the limit that keeps it longest.
        cost: of the request.
        need: what it needs of this limit.
        wait: seconds until it can fit; infinite where the limit is smaller than the request.
        all: every limit that it exceeds, with what it needs of it.
    """

    def __init__(
        self,
        account: Account,
        meter: Meter,
        cost: Cost,
        wait: float,
        exceeded: Sequence[tuple[Meter, int]],
    ) -> None:
        super().__init__(f"{account.title}: {meter.measure.shown(meter.amount)}")
        self.account = account
        self.meter = meter
        self.cost = cost
        self.need = cost.of(meter.measure)
        self.wait = wait
        self.all = exceeded


class Reservation:
    """What one request holds of every limit on its levels; ends exactly once.

    Attributes:
        cost: what it reserved.
        warnings: soft limits that the request exceeds.
        open: it has not ended.
    """

    __slots__ = ("_estimated", "_generated", "_ledger", "_taken", "cost", "open", "warnings")

    def __init__(
        self,
        ledger: Ledger,
        cost: Cost,
        taken: list[tuple[Meter, int, int]],
        warnings: tuple[tuple[Account, Meter], ...],
    ) -> None:
        self.open = True
        self.warnings = warnings
        self._ledger = ledger
        self.cost = cost
        self._taken = taken
        self._generated = 0
        self._estimated = cost.expected if cost.expected < cost.most else cost.most

    def progress(self, tokens: int) -> None:
        """So many more tokens were generated; those beyond the estimate are charged to rates."""
        self._generated += tokens
        more = self._generated - self._estimated
        if more <= 0 or not self.open:
            return
        self._estimated = self._generated
        now = self._ledger.now()
        for i, (meter, taken, period) in enumerate(self._taken):
            measure = meter.measure
            if measure.period is Period.MINUTE and measure.unit is Unit.TOKENS:
                meter.take(more, now)
                self._taken[i] = (meter, taken + more, period)

    def settle(self, tokens: int, money: int) -> None:
        """The request has ended: charge what it used. Does nothing the second time."""
        self._end(Used(self.cost.requests, tokens, money))

    def release(self) -> None:
        """The request was not served: charge nothing. Does nothing the second time."""
        self._end(NOTHING)

    def _end(self, used: Used) -> None:
        if not self.open:
            return
        self.open = False
        now = self._ledger.now()
        for meter, taken, period in self._taken:
            meter.end(taken, used.of(meter.measure), period, now)
        self._ledger.open -= 1


class Ledger:
    """Makes reservations.

    Args:
        now: reads the clocks.

    Attributes:
        open: reservations that have not ended.
    """

    def __init__(self, now: Callable[[], Now]) -> None:
        self.now = now
        self.open = 0

    def reserve(self, accounts: Sequence[Account], cost: Cost) -> Reservation:
        """Take what a request may use from every limit of `accounts`, or nothing.

        Raises:
            Exceeded: a hard limit has no room for it.
        """
        now = self.now()
        needs: list[tuple[Meter, int]] = []
        soft: list[tuple[Account, Meter]] = []
        exceeded: list[tuple[Account, Meter, int]] = []
        for account in accounts:
            for meter in account.meters:
                need = cost.of(meter.measure)
                needs.append((meter, need))
                if meter.fits(need, now) or not need:
                    continue
                if meter.soft:
                    soft.append((account, meter))
                else:
                    exceeded.append((account, meter, need))
        if exceeded:
            raise self._exceeded(cost, exceeded, now)
        taken = [(meter, need, meter.take(need, now)) for meter, need in needs]
        self.open += 1
        return Reservation(self, cost, taken, tuple(soft))

    def _exceeded(
        self, cost: Cost, exceeded: Sequence[tuple[Account, Meter, int]], now: Now
    ) -> Exceeded:
        waits = [meter.wait(need, now) for _, meter, need in exceeded]
        longest = max(waits)
        account, meter, _ = exceeded[waits.index(longest)]
        return Exceeded(account, meter, cost, longest, [(m, need) for _, m, need in exceeded])
