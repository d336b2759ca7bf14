"""Estimates for admission control: lengths of answers and throughput of the engine."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

FIRST_GUESS = 256.0
"""Assumed tokens of an answer before any has been measured."""

MAX_CLIENTS = 1024
"""Clients with a mean length of their own; beyond, the least recently used is evicted."""

MIN_SECONDS = 0.1
"""Seconds of work before a rate is reported."""

_MIN_WEIGHT = 1 / 16
_MIN_SAMPLES = 8


@dataclass(slots=True)
class _Mean:
    """An exponential moving average over about 16 values; of fewer values, their plain mean."""

    value: float = 0.0
    count: int = 0

    def note(self, value: float) -> None:
        self.count += 1
        self.value += max(_MIN_WEIGHT, 1 / self.count) * (value - self.value)


class AnswerLengths:
    """Learned mean lengths of answers, per client and over all."""

    def __init__(self) -> None:
        self._all = _Mean()
        self._clients: OrderedDict[str, _Mean] = OrderedDict()

    def note(self, client: str, tokens: int) -> None:
        """Record a finished choice of the client with its number of tokens."""
        self._all.note(tokens)
        mean = self._clients.setdefault(client, _Mean())
        self._clients.move_to_end(client)
        mean.note(tokens)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)

    def expected(self, client: str, max_tokens: int) -> int:
        """Expected tokens of the client's next answer: at least 1, at most `max_tokens`."""
        mean = self._clients.get(client)
        if mean is None or mean.count < _MIN_SAMPLES:
            mean = self._all
        value = mean.value if mean.count >= _MIN_SAMPLES else FIRST_GUESS
        return max(1, min(max_tokens, math.ceil(value)))


class Throughput:
    """Tokens per second of busy time, averaged over about the last `window` seconds of it."""

    def __init__(self, window: float = 15.0) -> None:
        self._window = window
        self._tokens = 0.0
        self._seconds = 0.0
        self._last: float | None = None

    def begin(self, now: float) -> None:
        """The engine is busy from now on; idle time does not count."""
        if self._last is None:
            self._last = now

    def pause(self, now: float) -> None:
        """The engine is idle from now on."""
        self.note(0, now)
        self._last = None

    def note(self, tokens: int, now: float) -> None:
        """Record tokens computed since the last call."""
        if self._last is not None and now > self._last:
            seconds = now - self._last
            keep = math.exp(-seconds / self._window)
            self._tokens *= keep
            self._seconds = self._seconds * keep + self._window * (1 - keep)
            self._last = now
        self._tokens += tokens

    def note_each(self, tokens: int, now: float) -> None:
        """Record so many tokens one by one: as so many calls of `note`."""
        self.note(1, now)
        for _ in range(tokens - 1):
            self._tokens += 1

    def rate(self, now: float) -> float | None:
        """Tokens per second; None before enough work was measured."""
        self.note(0, now)
        known = self._seconds >= MIN_SECONDS and self._tokens > 0
        return self._tokens / self._seconds if known else None


class PrefillSpeed:
    """Seconds per prompt token from admission to first token, including the queue ahead."""

    def __init__(self) -> None:
        self._mean = _Mean()

    def note(self, tokens: int, seconds: float) -> None:
        """Record a first token: seconds since admission, and prompt tokens to prefill by then."""
        # With few tokens the fixed cost of a step dominates.
        if tokens >= 32 and seconds > 0:
            self._mean.note(seconds / tokens)

    def seconds(self, tokens: float) -> float | None:
        """Seconds to prefill `tokens`; None before any measurement."""
        return tokens * self._mean.value if self._mean.count else None
