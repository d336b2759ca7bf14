"""Prices: what steps of streams and their drafts take, as measured.

`StepCost` is a line through steps of all sizes, prompts included. What the first tokens beyond one
cost is not on it: kernels go through the weights in tiles of rows. So the ratio of measured to
predicted time is learned by the number of tokens, between its neighbours where none was measured.
"""

from __future__ import annotations

from bisect import bisect_left

from tidemill.contract.plan import Drafting
from tidemill.sched.cost import Load, StepCost

MOST_TOKENS = 512
"""Tokens of the largest step that is corrected."""

_RATE = 0.12
_RANGE = (0.4, 2.5)
_FORGET = 0.97


class StepPrices:
    """Seconds of steps of streams with `n` tokens in all."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._knots: list[int] = []
        self._ratio: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._by_tokens = [1.0] * (MOST_TOKENS + 1)

    def observe(self, load: Load, seconds: float) -> None:
        """A step of streams took so long."""
        tokens = int(load.tokens)
        if not (self._cost.ready and 0 < tokens <= MOST_TOKENS) or seconds <= 0.0:
            return
        low, high = _RANGE
        ratio = min(high, max(low, seconds / max(self._cost.predict(load), 1e-9)))
        knot = _knot(tokens)
        if knot not in self._ratio:
            self._knots.insert(bisect_left(self._knots, knot), knot)
            # What the neighbours say counts as one measurement: the first one may be disturbed.
            self._ratio[knot], self._seen[knot] = self._by_tokens[knot], 1
        self._seen[knot] += 1
        before = self._ratio[knot]
        self._ratio[knot] += max(_RATE, 1 / self._seen[knot]) * (ratio - before)
        self._fill(self._knots.index(knot))

    def _fill(self, index: int) -> None:
        """Ratios from the knot before to the knot behind, and beyond the ends."""
        knots, ratio, filled = self._knots, self._ratio, self._by_tokens
        if index == 0:
            filled[: knots[0] + 1] = [ratio[knots[0]]] * (knots[0] + 1)
        if index == len(knots) - 1:
            last = knots[-1]
            filled[last:] = [ratio[last]] * (MOST_TOKENS + 1 - last)
        for i in (index - 1, index):
            if 0 <= i < len(knots) - 1:
                low, high = knots[i], knots[i + 1]
                rise = (ratio[high] - ratio[low]) / (high - low)
                filled[low : high + 1] = [
                    ratio[low] + rise * (n - low) for n in range(low, high + 1)
                ]

    def of_drafts(self, load: Load, rows: int, most: int) -> list[float]:
        """Seconds of a step of `rows` streams with 0 to `most` drafts beside this load."""
        cost, tokens = self._cost, int(load.tokens)
        alone = cost.predict(load)
        each = cost.predict(load.plus(int(load.reach) // max(1, rows), 1)) - alone
        filled, last = self._by_tokens, MOST_TOKENS
        found, floor = [], 0.0
        for drafts in range(most + 1):
            at = (alone + drafts * each) * filled[min(tokens + drafts, last)]
            if at > floor:  # more tokens never take less
                floor = at
            found.append(floor)
        return found


def _knot(tokens: int) -> int:
    """Numbers of tokens in steps of a fourth; each up to 8."""
    if tokens <= 8:
        return tokens
    part = 1 << (tokens.bit_length() - 3)
    return tokens // part * part


class DraftingPrice:
    """Seconds of a drafter, per draft of the longest proposal: some for the call, some per row;
    least squares over the latest calls."""

    __slots__ = ("_nn", "_ns", "_one", "_rows", "_seconds")

    def __init__(self) -> None:
        self._one = self._rows = self._nn = self._seconds = self._ns = 0.0

    def observe(self, done: Drafting) -> None:
        """A call's time."""
        if done.longest <= 0:
            return
        seconds, rows = done.seconds / done.longest, float(done.rows)
        if self._one > 4:  # what is catching up with a long prompt, or disturbed, counts less
            seconds = min(seconds, 4 * self._seconds / self._one + 1e-6)
        self._one = _FORGET * self._one + 1.0
        self._rows = _FORGET * self._rows + rows
        self._nn = _FORGET * self._nn + rows * rows
        self._seconds = _FORGET * self._seconds + seconds
        self._ns = _FORGET * self._ns + rows * seconds

    def parts(self) -> tuple[float, float]:
        """Seconds per draft of the longest proposal, and per draft and row besides."""
        if self._one == 0.0:
            return 0.0, 0.0
        spread = self._one * self._nn - self._rows * self._rows
        each = (
            (self._one * self._ns - self._rows * self._seconds) / spread if spread > 1e-6 else 0.0
        )
        mean, rows = self._seconds / self._one, self._rows / self._one
        each = min(max(each, 0.0), mean / rows)
        return mean - each * rows, each


class Pace:
    """Seconds between two steps that neither of them computes, where the second one was launched
    ahead of the first one's result, and where it waited for it."""

    def __init__(self) -> None:
        self._gaps = [0.0, 0.0]
        self._seen = [0, 0]
        self._last: float | None = None

    def observe(self, now: float, busy: float, *, ahead: bool, goes_on: bool) -> None:
        """A step's result is there.

        Args:
            now: seconds.
            busy: seconds of the step and of its drafters.
            ahead: it was launched ahead.
            goes_on: the next step follows at once.
        """
        last, self._last = self._last, now if goes_on else None
        if last is None:
            return
        gap = max(0.0, now - last - busy)
        known = self._gaps[ahead]
        if self._seen[ahead] > 3:
            gap = min(gap, 3 * known + 1e-4)
        self._seen[ahead] += 1
        self._gaps[ahead] = known + max(0.05, 1 / self._seen[ahead]) * (gap - known)

    @property
    def waiting(self) -> float:
        """Seconds lost where a step waits for the result of the one before."""
        return max(0.0, self._gaps[False] - self._gaps[True])

    @property
    def gap(self) -> float:
        """Seconds between steps that wait."""
        return self._gaps[False]
