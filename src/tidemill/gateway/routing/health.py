"""Whether a target may be asked: its breaker, and how long it said that it is busy.

What a target did decides, not what one request met: the breaker opens when several requests in a
row failed and the failures are a large share of the latest ones, and closes after one that did not.
While it is open nothing is sent; then one request at a time tries (half-open). Each failed try
doubles the time, up to a bound. `usable` never leaves a model without a target for a hiccup of all
of them: if every breaker is open, those that opened first are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

FAILURES = 3
"""In a row that open the breaker."""

SHARE = 0.5
"""Of the latest requests that failed, at least."""

FIRST_SECONDS, MAX_SECONDS = 1.0, 30.0
"""How long it stays open, at first and at most."""

MAX_BUSY_SECONDS = 60.0
"""How long a target's own Retry-After is believed."""

_WEIGHT = 0.1


class State(StrEnum):
    """Of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class Health:
    """Of one target. Times are of one monotonic clock.

    Attributes:
        opened: until when the breaker is open; None: it is closed.
        busy_until: the target refuses requests until then.
        reason: of the latest failure.
    """

    opened: float | None = None
    busy_until: float = 0.0
    reason: str = ""
    _failed: int = 0
    _share: float = 0.0
    _seconds: float = FIRST_SECONDS
    _trying: bool = field(default=False)

    def state(self, now: float) -> State:
        """The breaker's."""
        if self.opened is None:
            return State.CLOSED
        return State.OPEN if now < self.opened else State.HALF_OPEN

    def takes(self, now: float) -> bool:
        """Whether a request may go there."""
        state = self.state(now)
        return state is State.CLOSED or (state is State.HALF_OPEN and not self._trying)

    def begin(self, now: float) -> None:
        """A request goes there."""
        if self.opened is not None:
            self._trying = True

    def succeeded(self) -> None:
        """It answered: with an error of the client's, too."""
        self._share -= _WEIGHT * self._share
        self._failed = 0
        self._close()

    def failed(self, now: float, reason: str, *, down: bool = False) -> bool:
        """It did not answer, or with an error of its own.

        Args:
            now: the time.
            reason: for people.
            down: nothing listens there: no further proof is needed.

        Returns:
            The breaker has opened with this.
        """
        self.reason = reason
        self._failed += 1
        self._share += _WEIGHT * (1 - self._share)
        tried, self._trying = self._trying, False
        if self.opened is not None:
            if tried and now >= self.opened:
                self._seconds = min(MAX_SECONDS, 2 * self._seconds)
                self.opened = now + self._seconds
            return False
        likely = self._share >= SHARE or self._failed >= 2 * FAILURES
        if not (down or (self._failed >= FAILURES and likely)):
            return False
        self.opened = now + self._seconds
        return True

    def abandoned(self) -> None:
        """A request that went there ended without an outcome: its client left."""
        self._trying = False

    def busy(self, now: float, seconds: float) -> None:
        """It refused a request and said when to come again; it is well."""
        self.succeeded()
        self.busy_until = now + min(max(0.0, seconds), MAX_BUSY_SECONDS)

    def _close(self) -> None:
        self.opened, self._seconds, self._trying = None, FIRST_SECONDS, False


Item = TypeVar("Item")


def usable(targets: Sequence[Item], health_of: Callable[[Item], Health], now: float) -> list[Item]:
    """Those of a model's targets that may be asked.

    Where none may, and none is being tried, the one whose breaker closes next is: a fleet that a
    hiccup took all targets from comes back with the first request.
    """
    able = [one for one in targets if health_of(one).takes(now)]
    if able or not targets:
        return able
    next_one = min(targets, key=lambda one: health_of(one).opened or 0.0)
    return [] if health_of(next_one)._trying else [next_one]
