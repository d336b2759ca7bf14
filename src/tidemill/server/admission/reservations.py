"""Reservations: the time that a Retry-After names, and the capacity held for the retry.

A rejected request gets a time to retry, and capacity is reserved for that time. So clients return
one after the other, as fast as the engine works, and not all at once. The same request of the same
client (equal prompts and lengths) claims the reservation; the client has to do nothing else.

A client's next reservation is due when all its earlier ones can have been served at the client's
share of the measured rate. Many clients never return, so reserved tokens are weighted by the
measured fraction of reservations that are claimed. New requests leave room for the weighted amount.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TypeVar

MAX_RESERVATIONS = 16384
HORIZON_SECONDS = 3600.0
EARLY_SECONDS = 0.5
LATE_SECONDS = 10.0

_SAFETY = 0.9
_MIN_CLAIM_RATE = 0.1
_CLAIM_WEIGHT = 1 / 64

Fingerprint = tuple[str, int]
_K = TypeVar("_K", str, int)


@dataclass(slots=True, order=True)
class Reservation:
    """A time at which a request of `cost` tokens may return.

    Attributes:
        due, expires: clock seconds between which it can be claimed.
    """

    expires: float
    due: float = field(compare=False)
    fingerprint: Fingerprint = field(compare=False)
    cost: int = field(compare=False)
    claimed: bool = field(default=False, compare=False)


class Reservations:
    """All reservations of a server. Times are readings of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._of: dict[Fingerprint, deque[Reservation]] = {}
        self._by_expiry: list[Reservation] = []
        self._reserved: dict[str, int] = {}
        self._due: Counter[int] = Counter()  # second -> tokens due in it
        self._claim_rate = 1.0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._of.values())

    def claim(self, fingerprint: Fingerprint, now: float) -> bool:
        """Claim the reservation of a returning request: True if it is due; it is then used up."""
        self._expire(now)
        queue = self._of.get(fingerprint)
        if not queue or now < queue[0].due - EARLY_SECONDS:
            return False
        reservation = queue[0]
        reservation.claimed = True
        self._drop(reservation)
        self._note(1.0)
        return True

    def wait(self, fingerprint: Fingerprint, now: float) -> float | None:
        """Seconds until its reservation is due, for a request that returns too early; else None."""
        self._expire(now)
        queue = self._of.get(fingerprint)
        return max(0.0, queue[0].due - now) if queue else None

    def due(self, time: float) -> float:
        """Tokens of reservations that are due by `time`, weighted by the rate of claims."""
        return self._claim_rate * sum(n for second, n in self._due.items() if second <= time)

    def reserve(
        self, fingerprint: Fingerprint, now: float, *, cost: int, earliest: float, rate: float
    ) -> float:
        """Make a reservation; returns the seconds until it is due.

        Args:
            fingerprint: client and request.
            now: clock reading.
            cost: tokens.
            earliest: seconds until the capacity can be free at all.
            rate: tokens per second of this client's share.
        """
        self._expire(now)
        client = fingerprint[0]
        reserved = self._reserved.get(client, 0)
        per_second = rate * _SAFETY / self._claim_rate
        # Retry-After is in whole seconds.
        seconds = math.ceil(max(1.0, max(earliest, reserved / per_second) + cost / per_second))
        if seconds > HORIZON_SECONDS or len(self._by_expiry) >= MAX_RESERVATIONS:
            return min(float(seconds), HORIZON_SECONDS)
        due = now + seconds
        reservation = Reservation(due + max(LATE_SECONDS, seconds / 2), due, fingerprint, cost)
        self._reserved[client] = reserved + cost
        self._due[int(due)] += cost
        self._of.setdefault(fingerprint, deque()).append(reservation)
        heapq.heappush(self._by_expiry, reservation)
        return float(seconds)

    def _expire(self, now: float) -> None:
        """Drop expired reservations."""
        while self._by_expiry and (self._by_expiry[0].expires < now or self._by_expiry[0].claimed):
            reservation = heapq.heappop(self._by_expiry)
            if reservation.claimed:
                continue
            self._drop(reservation)
            self._note(0.0)

    def _drop(self, reservation: Reservation) -> None:
        queue = self._of[reservation.fingerprint]
        queue.remove(reservation)
        if not queue:
            del self._of[reservation.fingerprint]
        _take(self._reserved, reservation.fingerprint[0], reservation.cost)
        _take(self._due, int(reservation.due), reservation.cost)

    def _note(self, claimed: float) -> None:
        self._claim_rate += _CLAIM_WEIGHT * (claimed - self._claim_rate)
        self._claim_rate = max(_MIN_CLAIM_RATE, self._claim_rate)


def _take(counts: dict[_K, int], key: _K, amount: int) -> None:
    counts[key] -= amount
    if counts[key] <= 0:
        del counts[key]
