"""What admission goes by: how long answers are, and how fast the engine works."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

FIRST_GUESS = 256.0
"""Tokens of an answer before any has been seen."""

MAX_CLIENTS = 1024
"""Clients whose answers' lengths are remembered; beyond, the longest unseen is forgotten."""

MIN_SECONDS = 0.1
"""Of work, before a rate is worth anything."""

_MIN_WEIGHT = 1 / 16
_MIN_SAMPLES = 8


@dataclass(slots=True)
class _Mean:
    """A mean that forgets: of all values while there are few, then of about the last sixteen."""

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
        """A choice of the client's ended by itself after so many tokens."""
        self._all.note(tokens)
        mean = self._clients.setdefault(client, _Mean())
        self._clients.move_to_end(client)
        mean.note(tokens)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)

    def expected(self, client: str, max_tokens: int) -> int:
        """Tokens of the client's next answer: at least 1, at most `max_tokens`."""
        mean = self._clients.get(client)
        if mean is None or mean.count < _MIN_SAMPLES:
            mean = self._all
        value = mean.value if mean.count >= _MIN_SAMPLES else FIRST_GUESS
        return max(1, min(max_tokens, math.ceil(value)))


class Throughput:
    """Tokens per second while there is work, over about the last `window` seconds of it."""

    def __init__(self, window: float = 15.0) -> None:
        self._window = window
        self._tokens = 0.0
        self._seconds = 0.0
        self._last: float | None = None

    def begin(self, now: float) -> None:
        """There is work from now on; the time without any does not count."""
        if self._last is None:
            self._last = now

    def pause(self, now: float) -> None:
        """There is no work from now on."""
        self.note(0, now)
        self._last = None

    def note(self, tokens: int, now: float) -> None:
        """So many tokens were computed until now."""
        if self._last is not None and now > self._last:
            seconds = now - self._last
            keep = math.exp(-seconds / self._window)
            self._tokens *= keep
            self._seconds = self._seconds * keep + self._window * (1 - keep)
            self._last = now
        self._tokens += tokens

    def rate(self, now: float) -> float | None:
        """Tokens per second; None before enough work was seen."""
        self.note(0, now)
        known = self._seconds >= MIN_SECONDS and self._tokens > 0
        return self._tokens / self._seconds if known else None


class PrefillSpeed:
    """Prompt tokens per second from admission to first token, those waiting ahead included."""

    def __init__(self) -> None:
        self._mean = _Mean()

    def note(self, tokens: int, seconds: float) -> None:
        """A first token came `seconds` after admission, `tokens` prompt tokens were to be read."""
        # Few tokens say how long a step takes, not how fast prompts are read.
        if tokens >= 32 and seconds > 0:
            self._mean.note(seconds / tokens)

    def seconds(self, tokens: float) -> float | None:
        """Seconds until so many are read; None before it was measured."""
        return tokens * self._mean.value if self._mean.count else None
