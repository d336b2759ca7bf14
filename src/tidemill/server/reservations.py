"""Reservations: what a Retry-After promises, so that it can be kept.

Who is refused is told when to come back, and a place is kept for that time: clients come back one
after the other as fast as the engine works, not all at once. A booking is claimed by the same
request of the same client (equal prompts and lengths); nothing but waiting is asked of it.

A client's next booking is due when all its earlier ones can have been served at its share of the
measured rate. Many never come back, so what is booked counts by the measured part of bookings that
were claimed, also where newcomers leave room for what is due.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TypeVar

MAX_BOOKINGS = 16384
HORIZON_SECONDS = 3600.0
EARLY_SECONDS = 0.5
LATE_SECONDS = 10.0

_SAFETY = 0.9
_LEAST_KEPT = 0.1
_KEPT_RATE = 1 / 64

Fingerprint = tuple[str, int]
_K = TypeVar("_K", str, int)


@dataclass(slots=True, order=True)
class Reservation:
    """A time at which a request of `cost` tokens may come back.

    Attributes:
        due, until: clock seconds: from when, and until when it is kept.
    """

    until: float
    due: float = field(compare=False)
    who: Fingerprint = field(compare=False)
    cost: int = field(compare=False)
    claimed: bool = field(default=False, compare=False)


class Reservations:
    """All bookings of a server. Times are readings of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._of: dict[Fingerprint, deque[Reservation]] = {}
        self._by_end: list[Reservation] = []
        self._booked: dict[str, int] = {}
        self._due: Counter[int] = Counter()  # tokens by the second they are due in
        self._kept = 1.0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._of.values())

    def claim(self, who: Fingerprint, now: float) -> bool:
        """The request is back: True when it was told to come now, and its booking is used up."""
        self._expire(now)
        queue = self._of.get(who)
        if not queue or now < queue[0].due - EARLY_SECONDS:
            return False
        reservation = queue[0]
        reservation.claimed = True
        self._drop(reservation)
        self._note(1.0)
        return True

    def wait(self, who: Fingerprint, now: float) -> float | None:
        """Seconds until its booking is due, for a request that came too early; else None."""
        self._expire(now)
        queue = self._of.get(who)
        return max(0.0, queue[0].due - now) if queue else None

    def due(self, time: float) -> float:
        """Tokens of bookings that are due by then and are likely to be claimed."""
        return self._kept * sum(n for second, n in self._due.items() if second <= time)

    def book(
        self, who: Fingerprint, now: float, *, cost: int, earliest: float, rate: float
    ) -> float:
        """Keep a place; returns the seconds to wait for it.

        Args:
            who: client and request.
            now: clock reading.
            cost: tokens.
            earliest: seconds before which there is no room in any case.
            rate: tokens per second that are this client's.
        """
        self._expire(now)
        client = who[0]
        booked = self._booked.get(client, 0)
        per_second = rate * _SAFETY / self._kept
        # What the client is told is whole seconds.
        seconds = math.ceil(max(1.0, max(earliest, booked / per_second) + cost / per_second))
        if seconds > HORIZON_SECONDS or len(self._by_end) >= MAX_BOOKINGS:
            return min(float(seconds), HORIZON_SECONDS)
        due = now + seconds
        reservation = Reservation(due + max(LATE_SECONDS, seconds / 2), due, who, cost)
        self._booked[client] = booked + cost
        self._due[int(due)] += cost
        self._of.setdefault(who, deque()).append(reservation)
        heapq.heappush(self._by_end, reservation)
        return float(seconds)

    def _expire(self, now: float) -> None:
        """Forget those that did not come."""
        while self._by_end and (self._by_end[0].until < now or self._by_end[0].claimed):
            reservation = heapq.heappop(self._by_end)
            if reservation.claimed:
                continue
            self._drop(reservation)
            self._note(0.0)

    def _drop(self, reservation: Reservation) -> None:
        queue = self._of[reservation.who]
        queue.remove(reservation)
        if not queue:
            del self._of[reservation.who]
        _take(self._booked, reservation.who[0], reservation.cost)
        _take(self._due, int(reservation.due), reservation.cost)

    def _note(self, kept: float) -> None:
        self._kept += _KEPT_RATE * (kept - self._kept)
        self._kept = max(_LEAST_KEPT, self._kept)


def _take(counts: dict[_K, int], key: _K, amount: int) -> None:
    counts[key] -= amount
    if counts[key] <= 0:
        del counts[key]
