"""Observations of two versions become differences between requests of the same time.

Load changes all latencies together, and the share of traffic changes between steps. So versions are
compared in blocks: a fixed number of consecutive observations, after which the difference of the
two versions' means is one number. What both versions meet cancels. A block that misses a version
goes on for as many observations again.

Within a block of a fixed share, which request went to which version is the hash's chance alone. So
for two versions that do not differ the difference has mean zero, whatever the load does, and for a
version that takes r times as long its mean on log scale is log r. Values far from the centre are
clipped, which bounds what a single request can say and never makes a difference larger.
"""

from __future__ import annotations

import math

import msgspec

BASELINE, VARIANT = 0, 1

_CLIP = 3.0  # scales around the centre
_LEAST_SCALE = 0.05  # on log scale: values that vary by less than 5 % are compared by 5 %
_FIRST_SCALE = 0.5
_MEAN_TO_DEVIATION = math.sqrt(math.pi / 2)  # of a normal variable
_MEMORY = 50  # blocks that centre and scale look back


class Difference(msgspec.Struct, frozen=True):
    """Of one block: x in [-1, 1] with E[x] = effect * a."""

    x: float
    a: float


class Block(msgspec.Struct):
    """The open block of one metric and stratum, and what past blocks say of its values.

    Attributes:
        count: observations per version.
        total: sum of their scaled, clipped values per version.
        raw: sum of their clipped distances from the centre, unscaled.
        spread: sum of the absolute values of these.
        closed: blocks closed until now.
        center: typical value, from past blocks; None before the first.
        scale: typical distance from it, from past blocks.
    """

    count: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    total: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0])
    raw: float = 0.0
    spread: float = 0.0
    closed: int = 0
    center: float | None = None
    scale: float = _FIRST_SCALE

    def add_share(self, arm: int, value: float, length: int) -> Difference | None:
        """Adds a value in [0, 1] that is compared as it is."""
        self.count[arm] += 1
        self.total[arm] += value
        return self._close(1.0) if self._full(length) else None

    def add_log(self, arm: int, value: float, length: int) -> Difference | None:
        """Adds the logarithm of a positive value. The first block only finds the centre."""
        self.count[arm] += 1
        if self.center is None:
            self.raw += value
        else:
            reach = _CLIP * self.scale
            distance = min(max(value - self.center, -reach), reach)
            self.raw += distance
            self.spread += abs(distance)
            self.total[arm] += distance / (2 * reach)
        return self._close_log() if self._full(length) else None

    def end_step(self, relative: bool) -> Difference | None:
        """Ends the open block because the share changes; without both versions it is dropped."""
        if 0 in self.count:
            self._clear()
            return None
        return self._close_log() if relative else self._close(1.0)

    def _full(self, length: int) -> bool:
        return 0 not in self.count and sum(self.count) % length == 0

    def _close_log(self) -> Difference | None:
        n = sum(self.count)
        if self.center is None:
            self.center = self.raw / n
            self._clear()
            return None
        difference_scale = 1 / (2 * _CLIP * self.scale)
        # Only later blocks are scaled by what this one says: a scale that knew its own block's
        # values would bias the difference.
        self.closed += 1
        rate = 1 / min(self.closed + 4, _MEMORY)
        center = self.center + rate * self.raw / n
        spread = _MEAN_TO_DEVIATION * self.spread / n
        scale = max(_LEAST_SCALE, self.scale + rate * (spread - self.scale))
        difference = self._close(difference_scale)
        self.center, self.scale = center, scale
        return difference

    def _close(self, a: float) -> Difference:
        x = self.total[VARIANT] / self.count[VARIANT] - self.total[BASELINE] / self.count[BASELINE]
        self._clear()
        return Difference(x, a)

    def _clear(self) -> None:
        self.count, self.total = [0, 0], [0.0, 0.0]
        self.raw = self.spread = 0.0


def block_length(share: float) -> int:
    """Observations of a block in which the rarer version has two on average.

    Args:
        share: of the variant among both versions' requests, above 0 and below 1.
    """
    return math.ceil(2 / min(share, 1 - share) - 1e-9)  # rounding must not add one
