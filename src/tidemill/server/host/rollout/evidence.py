"""Sequential evidence for a difference of two versions, valid however often it is looked at.

Input is a sequence of differences x in [-1, 1], one per block (`matching.py`), with a scale a > 0
known before the block, such that E[x | past] = effect * a. Nothing is assumed about distributions,
and x need be neither identically distributed nor independent of the past.

The method is testing by betting (Waudby-Smith & Ramdas, "Estimating means of bounded random
variables by betting", JRSS-B 2024; Shafer, "Testing by betting", JRSS-A 2021). Against "the effect
is at most v" a gambler with capital 1 stakes the share s of it on each
y = (x - v*a) / (1 + |v|*a) >= -1, and has 1 + s*y times as much afterwards. While the hypothesis
holds the capital is a nonnegative supermartingale. By Ville's inequality it ever reaches 1/p with
probability at most p: at any time, under any rule of stopping. The best stake is unknown, so the
capital is spread over several (the method of mixtures, Robbins 1970).

The same bets are made on a grid of effects. Those that were refuted at level p bound the effect: a
confidence sequence (Howard, Ramdas, McAuliffe & Sekhon, Annals of Statistics 2021), of which each
end is ever wrong with probability at most p. A canary's limits are values of the grid, so that its
decisions and the interval that is shown never contradict each other.
"""

from __future__ import annotations

import math

import msgspec

# Shares of the capital. The best one is about (effect beyond the limit) / variance of x, which for
# latencies and error rates lies between 0.02 and 1.
STAKES = (0.95, 0.5, 0.25, 0.12, 0.05)
# With so little of the capital left, a bet that decides nothing but an interval is given up.
_RUINED = 1e-3
_LEAST = 1e-290  # of a limit's bet, above underflow


class Bet(msgspec.Struct):
    """A gambler on one value of the effect and one side of it.

    Attributes:
        capital: per stake; their mean is the e-value.
        open: False: the value is refuted, or the bet was given up.
        refuted: the e-value has reached the level.
    """

    capital: list[float] = msgspec.field(default_factory=lambda: [1.0] * len(STAKES))
    open: bool = True
    refuted: bool = False

    def place(self, y: float, needed: float, limit: bool) -> None:
        """Bets on y in [-1, 1]. A bet on a limit goes on until it is won: a version that gets worse
        late must be found.
        """
        self.capital = capital = [
            c * (1.0 + s * y) for c, s in zip(self.capital, STAKES, strict=True)
        ]
        e_value = sum(capital) / len(STAKES)
        if e_value >= needed:
            self.refuted, self.open = True, False
        elif limit:
            if e_value < _LEAST:
                self.capital = [_LEAST] * len(STAKES)
        elif e_value < _RUINED:
            self.open = False

    @property
    def e_value(self) -> float:
        """Evidence against the hypothesis; it stays where it was once the bet is over."""
        return sum(self.capital) / len(STAKES)


class Candidate(msgspec.Struct):
    """A value that the effect might have.

    Attributes:
        value: in the units of the effect.
        above: bets that the effect is above it.
        below: bets that the effect is below it.
        sign: 0, or for a limit the side that lies beyond: 1 above, -1 below.
    """

    value: float
    above: Bet = msgspec.field(default_factory=Bet)
    below: Bet = msgspec.field(default_factory=Bet)
    sign: int = 0

    @property
    def beyond(self) -> Bet:
        """Of a limit: that the effect is beyond it."""
        return self.above if self.sign > 0 else self.below

    @property
    def within(self) -> Bet:
        """Of a limit: that the effect is within it."""
        return self.below if self.sign > 0 else self.above


class Evidence(msgspec.Struct):
    """What the differences of one metric say.

    Attributes:
        needed: e-value that refutes a value.
        candidates: the grid in rising order, limits included.
        blocks: differences added.
        sum_x: of x.
        sum_a: of a.
    """

    needed: float
    candidates: list[Candidate]
    blocks: int = 0
    sum_x: float = 0.0
    sum_a: float = 0.0

    @classmethod
    def on_grid(
        cls, grid: tuple[float, ...], limits: list[tuple[float, int]], needed: float
    ) -> Evidence:
        """No differences yet.

        Args:
            grid: values of the effect at which an interval may end.
            limits: pairs of a value and the side beyond it (1, -1).
            needed: see `Evidence`.
        """
        taken = {value for value, _ in limits}
        candidates = [Candidate(value) for value in grid if value not in taken]
        candidates += [Candidate(value, sign=sign) for value, sign in limits]
        return cls(needed, sorted(candidates, key=lambda c: c.value))

    def add(self, x: float, a: float) -> None:
        """Adds one difference. Costs a few microseconds per value that is still open."""
        self.blocks += 1
        self.sum_x += x
        self.sum_a += a
        for candidate in self.candidates:
            above, below = candidate.above, candidate.below
            if not (above.open or below.open):
                continue
            value = candidate.value
            y = (x - value * a) / (1.0 + abs(value) * a)
            y = min(max(y, -1.0), 1.0)  # outside by rounding at most
            if above.open:
                above.place(y, self.needed, candidate.sign != 0)
            if below.open:
                below.place(-y, self.needed, candidate.sign != 0)

    @property
    def limits(self) -> list[Candidate]:
        """The candidates that are limits."""
        return [c for c in self.candidates if c.sign]

    @property
    def effect(self) -> float | None:
        """The estimate; None without differences."""
        return self.sum_x / self.sum_a if self.blocks else None

    @property
    def low(self) -> float | None:
        """The effect is above this; None when the grid's lowest value is not refuted yet."""
        refuted = (c.value for c in self.candidates if c.above.refuted)
        return max(refuted, default=None)

    @property
    def high(self) -> float | None:
        """The effect is below this."""
        refuted = (c.value for c in self.candidates if c.below.refuted)
        return min(refuted, default=None)


def log_grid(steps: tuple[float, ...]) -> tuple[float, ...]:
    """Relative rises and the falls that undo them, on log scale."""
    rises = [math.log1p(step) for step in steps]
    return tuple(sorted([-r for r in rises] + [0.0, *rises]))


def share_grid(steps: tuple[float, ...]) -> tuple[float, ...]:
    """Rises and falls of a share."""
    return tuple(sorted([-step for step in steps] + [0.0, *steps]))
