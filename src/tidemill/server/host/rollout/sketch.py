"""Small deterministic summaries of a stream of values: quantiles and distinct counts."""

from __future__ import annotations

import math

import msgspec

_RATIO = 1.05  # of a bucket's edges: a quantile is right to 2.5 %
_LOG = math.log(_RATIO)
_LOWEST, _HIGHEST = 1e-6, 1e9  # 710 buckets at most


class QuantileSketch(msgspec.Struct):
    """Quantiles of positive values within 2.5 %, in buckets of constant ratio (DDSketch, Masson,
    Rim & Lee 2019). Which values came first does not matter.

    Attributes:
        count: values added.
        buckets: bucket -> values in it.
    """

    count: int = 0
    buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        bucket = math.ceil(math.log(min(max(value, _LOWEST), _HIGHEST)) / _LOG)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """The value below which `share` of the values lie; None without values."""
        rank = share * (self.count - 1)
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank < 0:
                return 2 * math.exp(bucket * _LOG) / (1 + _RATIO)
        return None


class DistinctSketch(msgspec.Struct):
    """How many distinct hashes were seen, in 2048 bits (linear counting, Whang et al. 1990); within
    some 5 % up to 5,000.
    """

    bits: bytearray = msgspec.field(default_factory=lambda: bytearray(256))

    def add(self, bits: int) -> None:
        place = (bits * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 53  # 11 bits of all 64
        self.bits[place >> 3] |= 1 << (place & 7)

    @property
    def count(self) -> int:
        zeros = 2048 - int.from_bytes(self.bits, "big").bit_count()
        return round(2048 * math.log(2048 / max(zeros, 1)))
