"""What a target was given and has not computed yet, and how fast it computes.

A request is counted the moment its target is chosen, before a byte is sent, and leaves exactly
once: decisions in between see it. A retry is a reservation of its own with the other target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

FIRST_RATE = 2000.0
"""Prompt tokens per second that are assumed before any was measured."""

FIRST_STEP = 0.03
"""Seconds per generated token, likewise."""

WINDOW_SECONDS = 10.0
"""Of work over which the rate is averaged."""

FLOOR_SECONDS = 60.0
"""After which half of a floor is forgotten."""

_WEIGHT = 0.2
_MEASURABLE = 64
"""Prompts of fewer tokens tell the floor rather than the rate."""

ANNOUNCED_SECONDS = 3.0
"""How long what a target announced is believed."""


@dataclass(slots=True)
class Reservation:
    """One request of one target.

    Attributes:
        began: when it was reserved.
        uncached: prompt tokens that the target has to compute.
        expected: tokens of the answer.
        alone: nothing was before it.
        first: when its first token came; None: it has not.
    """

    began: float
    uncached: int
    expected: int
    alone: bool = True
    first: float | None = None


@dataclass(slots=True)
class Load:
    """Of one target.

    Attributes:
        slots: requests that it computes at once; None: unknown.
        rate: prompt tokens per second.
        step: seconds per generated token of one request.
        given: requests that it has been given.
    """

    slots: int | None = None
    rate: float = FIRST_RATE
    step: float = FIRST_STEP
    given: int = 0
    _open: dict[int, Reservation] = field(default_factory=dict)
    _queued: dict[int, Reservation] = field(
        default_factory=dict
    )  # without a first token; oldest first
    _pending: int = 0  # uncached tokens of these
    _turn: float = 0.0  # when the oldest of them began to be computed
    _tokens: float = 0.0  # computed in `_seconds` of work
    _seconds: float = 0.0
    _floor: float = 0.0
    _floored: float = 0.0  # when that was measured
    _announced: tuple[float, float] = (0.0, float("-inf"))

    @property
    def active(self) -> int:
        """Requests that it is answering."""
        return len(self._open)

    def reserve(self, now: float, uncached: int, expected: int) -> Reservation:
        """A request goes there."""
        reservation = Reservation(now, max(1, uncached), max(1, expected))
        reservation.alone = not self._queued
        if reservation.alone:
            self._turn = now
        self._pending += reservation.uncached
        self._open[id(reservation)] = self._queued[id(reservation)] = reservation
        self.given += 1
        return reservation

    def first(self, reservation: Reservation, now: float) -> None:
        """Its first token has come."""
        if self._queued.pop(id(reservation), None) is None:
            return
        self._pending -= reservation.uncached
        reservation.first = now
        self._learn(reservation.uncached, now - self._turn)
        self._turn = now
        if reservation.alone and reservation.uncached < _MEASURABLE:
            floor = self.floor(now)
            self._floor = floor + _WEIGHT * (now - reservation.began - floor)
            self._floored = now

    def end(self, reservation: Reservation, now: float, tokens: int = 0) -> None:
        """It has ended, however: a second call does nothing."""
        if self._open.pop(id(reservation), None) is None:
            return
        if self._queued.pop(id(reservation), None) is not None:
            self._pending -= reservation.uncached
        if reservation.first is not None and tokens > 8:
            self.step += _WEIGHT * ((now - reservation.first) / tokens - self.step)

    def announce(self, now: float, seconds: float) -> None:
        """The target's own estimate of its wait: it knows of other clients."""
        self._announced = (seconds, now)

    def floor(self, now: float) -> float:
        """Seconds of a first token beyond its prompt's. What was measured long ago counts less: a
        target that was slow once is tried again."""
        return float(self._floor * 0.5 ** ((now - self._floored) / FLOOR_SECONDS))

    def waiting(self, now: float) -> float:
        """Seconds until a further request begins to be computed."""
        if not self._queued and (self.slots is None or len(self._open) < self.slots):
            seconds, at = self._announced
            announced = seconds - (now - at) if now - at < ANNOUNCED_SECONDS else 0.0
            return max(0.0, announced)
        prompts = self._pending / self.rate
        if self._queued:
            oldest = next(iter(self._queued.values()))
            # Of the one that is being computed, a part is done.
            prompts -= min(now - self._turn, oldest.uncached / self.rate)
        seconds, at = self._announced
        announced = seconds - (now - at) if now - at < ANNOUNCED_SECONDS else 0.0
        return max(0.0, prompts + self._for_a_slot(now), announced)

    def _for_a_slot(self, now: float) -> float:
        """Seconds until one of the requests in the slots ends."""
        if self.slots is None or len(self._open) < self.slots:
            return 0.0
        left = sorted(self._left(one, now) for one in self._open.values())
        return left[min(len(left) - self.slots, len(left) - 1)]

    def _left(self, reservation: Reservation, now: float) -> float:
        spent = 0.0 if reservation.first is None else now - reservation.first
        return max(0.0, reservation.expected * self.step - spent)

    def _learn(self, tokens: int, seconds: float) -> None:
        """So many tokens were computed in so many seconds of work; several at once are noted with
        0 seconds each but the first."""
        keep = exp(-seconds / WINDOW_SECONDS)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds
        if self._tokens >= _MEASURABLE and self._seconds > 0:
            self.rate = self._tokens / self._seconds
