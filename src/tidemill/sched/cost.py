"""StepCost: predicts the time of a step from the measured times of earlier steps.

The prediction is a sum of four non-negative terms: a constant (reading the weights), and terms
proportional to the tokens computed (matrix products), the query-key pairs (attention) and the KV
positions read. Measurements are stored as means over classes of similar steps, so that those of
long contexts survive while only short ones run. The coefficients are fitted to the classes by non-
negative least squares on the relative error (Lawson and Hanson, Solving Least Squares Problems,
1974, chapter 23), solved by coordinate descent on the normal equations. Outliers are clipped
(Huber, Robust Estimation of a Location Parameter, 1964), because other processes on the machine
also delay steps. A step with adapters takes longer by their bytes, each read once whatever rows
have it; the seconds per byte are learned from what is left of such steps' time (normalized least
mean squares: Widrow and Hoff, Adaptive Switching Circuits, 1960). `margin` is learned too: the
ratio of measured to predicted time that 95 % of the steps stay below.

Predictions never change the output: it does not depend on how a prompt is chunked (promise 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Scale of the features, so that the fitted coefficients are of similar magnitude.
_UNITS = (1.0, 64.0, 2.0**18, 2.0**14)

# Prior for attention: at this context length it costs as much as the matrix products. Real models
# reach that at longer contexts (a 0.6B model on AVX-512 at some 1500), so the first chunks at long
# contexts are too small rather than too large.
_PRIOR_DEPTH = 512.0
_PRIOR_WEIGHT = 0.02

_FIRST_STEPS = 3
_FIT_OFTEN = 32
_FIT_EVERY = 8
_SWEEPS = 12
_MAX_CLASSES = 256
_CLASS_RATE = 0.2
_FAR = 1.5
_DRIFT_RATE = 0.1
_DRIFT_RANGE = (0.5, 3.0)
_MARGIN_STEP = 0.02
_MARGIN_RANGE = (1.0, 1.5)
_MARGIN_SHARE = 0.95
_ADAPTER_RATE = 0.1
# Of a step's time, adapters never take more than this.
_MOST_FOR_ADAPTERS = 0.8

_Vector = tuple[float, float, float, float]
_SizeClass = tuple[int, int, int]


@dataclass(slots=True)
class Load:
    """The work of a step, as features of the cost model.

    Attributes:
        tokens: tokens computed.
        pairs: query-key pairs of attention.
        reach: KV positions read, over all rows.
        adapter_bytes: memory of the adapters of its rows.
        slots: these adapters; None: no row has one.
    """

    tokens: float = 0
    pairs: float = 0
    reach: float = 0
    adapter_bytes: float = 0
    slots: set[int] | None = None

    def add_adapter(self, slot: int, nbytes: int, share: float = 1.0) -> None:
        """A row has the adapters of this slot (0: none), which take `nbytes`."""
        if not slot:
            return
        if self.slots is None:
            self.slots = set()
        if slot not in self.slots:
            self.slots.add(slot)
            self.adapter_bytes += share * nbytes

    def add(self, start: int, count: int, share: float = 1.0) -> None:
        """Add a row of `count` tokens after `start` computed ones; `share` is the fraction of
        layers that the step computes."""
        self.tokens += share * count
        self.pairs += share * (count * start + count * (count + 1) // 2)
        self.reach += share * (start + count)

    def plus(self, start: int, count: int) -> Load:
        """This load with one more row."""
        more = Load(self.tokens, self.pairs, self.reach, self.adapter_bytes, self.slots)
        if count:
            more.add(start, count)
        return more

    @property
    def features(self) -> _Vector:
        """The scaled features, in the order of the coefficients."""
        _, tokens, pairs, reach = _UNITS
        return 1.0, self.tokens / tokens, self.pairs / pairs, self.reach / reach

    @property
    def size_class(self) -> _SizeClass:
        """Equal for loads that differ by less than a factor of about two in every number."""
        tokens, pairs, reach = int(self.tokens), int(self.pairs), int(self.reach)
        return tokens.bit_length(), pairs.bit_length(), reach.bit_length()


_ONE_TOKEN = Load(1, 1, 1)


class _Class(NamedTuple):
    """Mean features and seconds of similar steps."""

    features: _Vector
    seconds: float
    steps: int = 1


class _Terms(NamedTuple):
    """What a class adds to the normal equations, and its seconds per token if they were all of
    tokens and attention."""

    right: _Vector
    gram: tuple[float, ...]  # by rows, from the diagonal on
    per_token: float


def _terms_of(known: _Class) -> _Terms:
    seconds = known.seconds
    one, tokens, pairs, reach = known.features
    a, b, c, d = one / seconds, tokens / seconds, pairs / seconds, reach / seconds
    return _Terms(
        (a, b, c, d),
        (a * a, a * b, a * c, a * d, b * b, b * c, b * d, c * c, c * d, d * d),
        seconds / (tokens * _UNITS[1] + pairs * _UNITS[2] / _PRIOR_DEPTH),
    )


class StepCost:
    """Predicts the seconds of a step; learns from every step measured."""

    def __init__(self) -> None:
        self.margin = 1.15
        self._parts = [0.0] * 4
        self._classes: dict[_SizeClass, _Class] = {}  # the one seen last is last
        self._terms: dict[_SizeClass, _Terms] = {}  # of classes that are as they were then
        self._steps = 0
        self._drift = 1.0
        self._per_adapter_byte = self._adapter_power = 0.0

    def copy(self) -> StepCost:
        """One that has learned the same, and learns on its own."""
        other = StepCost()
        other.margin, other._steps, other._drift = self.margin, self._steps, self._drift
        other._parts = list(self._parts)
        other._per_adapter_byte = self._per_adapter_byte
        other._adapter_power = self._adapter_power
        other._classes = dict(self._classes)
        other._terms = dict(self._terms)
        return other

    @property
    def ready(self) -> bool:
        """True once enough steps were measured for a prediction."""
        return self._steps >= _FIRST_STEPS

    def predict(self, load: Load) -> float:
        """Predicted seconds of the step; 0 before any step was measured."""
        return self._predict(load.features) + self._per_adapter_byte * load.adapter_bytes

    def _predict(self, features: _Vector) -> float:
        a, b, c, d = self._parts
        _, tokens, pairs, reach = features
        return (a + b * tokens + c * pairs + d * reach) * self._drift

    def bound(self, load: Load) -> float:
        """Upper bound in seconds that 95 % of such steps stay below."""
        return self.predict(load) * self.margin

    @property
    def least(self) -> float:
        """Bound in seconds of a step of one token."""
        return self.bound(_ONE_TOKEN) if self.ready else 0.0

    def bound_of_row(self, load: Load, start: int, count: int) -> float:
        """Seconds that one more row adds to the bound."""
        return self.bound(load.plus(start, count)) - self.bound(load)

    def longest_chunk(self, load: Load, start: int, most: int, seconds: float) -> int:
        """The most tokens (0 to `most`) of a row at `start` that fit into `seconds` with `load`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.bound(load.plus(start, middle)) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

    def observe(self, load: Load, seconds: float) -> None:
        """Learn from a measured step. Steps without a time or without tokens are ignored."""
        if seconds <= 0.0 or load.tokens == 0:
            return
        features = load.features
        if self.ready:
            predicted = self._predict(features)
            if load.adapter_bytes:
                seconds = self._without_adapters(load.adapter_bytes, seconds, predicted)
            else:
                self._compare(seconds / max(predicted, 1e-9))
        self._enter(load.size_class, features, seconds)
        self._steps += 1
        if self._steps < _FIT_OFTEN or self._steps % _FIT_EVERY == 0:
            self._fit()

    def _exceeded(self, ratio: float) -> None:
        # Stochastic quantile estimate: up by the quantile's share if exceeded, else down by the
        # remainder.
        step = _MARGIN_STEP * (_MARGIN_SHARE if ratio > self.margin else _MARGIN_SHARE - 1.0)
        self.margin = _clip(self.margin + step, *_MARGIN_RANGE)

    def _compare(self, ratio: float) -> None:
        self._exceeded(ratio)
        drift = self._drift * _clip(ratio, 1 / _FAR, _FAR)
        self._drift = _clip(self._drift + _DRIFT_RATE * (drift - self._drift), *_DRIFT_RANGE)

    def _without_adapters(self, nbytes: float, seconds: float, base: float) -> float:
        """Learn from a step with adapters; the seconds that it would have taken without, of which
        `base` are predicted."""
        predicted = base + self._per_adapter_byte * nbytes
        left = _clip(seconds, predicted / _FAR, predicted * _FAR) - predicted
        self._adapter_power += _ADAPTER_RATE * (nbytes * nbytes - self._adapter_power)
        step = _ADAPTER_RATE * left * nbytes / max(self._adapter_power, nbytes * nbytes)
        most = _MOST_FOR_ADAPTERS * seconds / nbytes
        self._per_adapter_byte = _clip(self._per_adapter_byte + step, 0.0, most)
        self._exceeded(seconds / max(predicted, 1e-9))
        return seconds - self._per_adapter_byte * nbytes

    def _enter(self, key: _SizeClass, features: _Vector, seconds: float) -> None:
        self._terms.pop(key, None)
        known = self._classes.pop(key, None)
        if known is None:
            self._classes[key] = _Class(features, seconds)
            if len(self._classes) > _MAX_CLASSES:
                oldest = next(iter(self._classes))
                del self._classes[oldest]
                self._terms.pop(oldest, None)
            return
        (_, x, y, z), mean, steps = known
        steps += 1
        rate = max(_CLASS_RATE, 1 / steps)
        if steps > 3:
            seconds = _clip(seconds, mean / _FAR, mean * _FAR)
        mean += rate * (seconds - mean)
        one, tokens, pairs, reach = features
        x += rate * (tokens - x)
        y += rate * (pairs - y)
        z += rate * (reach - z)
        self._classes[key] = _Class((one, x, y, z), mean, steps)

    def _fit(self) -> None:
        """Non-negative least squares of the relative error over the classes."""
        terms = self._terms
        for key, known in self._classes.items():
            if key not in terms:
                terms[key] = _terms_of(known)
        rights, grams, each = zip(*terms.values(), strict=True)
        prior = _prior(min(each))
        right = list(map(math.fsum, zip(*rights, strict=True)))
        gram = list(map(math.fsum, zip(*grams, strict=True)))
        for i, diagonal in enumerate((0, 4, 7, 9)):
            # Regularization: coefficients that the classes do not determine stay near the prior.
            pull = _PRIOR_WEIGHT / max(prior[i], prior[1]) ** 2
            gram[diagonal] += pull
            right[i] += pull * prior[i]
        self._parts = _descended(gram, right, self._parts if self._steps > 1 else prior)


def _prior(per_token: float) -> list[float]:
    """Coefficients that attribute all time of the cheapest class to tokens and attention."""
    return [0.0, per_token * _UNITS[1], per_token / _PRIOR_DEPTH * _UNITS[2], 0.0]


def computing(cost: StepCost, start: int, end: int, step: int) -> float:
    """Predicted seconds of computing positions alone, in steps of `step` tokens."""
    total = 0.0
    for at in range(start, end, step):
        total += cost.predict(Load().plus(at, min(step, end - at)))
    return total


def _descended(
    gram: Sequence[float], right: Sequence[float], parts: Sequence[float]
) -> list[float]:
    """Coefficients of at least 0, by `_SWEEPS` sweeps of coordinate descent from `parts`. Written
    out: it takes a good part of a step's time where steps are short."""
    g00, g01, g02, g03, g11, g12, g13, g22, g23, g33 = gram
    r0, r1, r2, r3 = right
    a, b, c, d = parts
    for _ in range(_SWEEPS):
        a = max(0.0, (r0 - (g01 * b + g02 * c + g03 * d)) / g00)
        b = max(0.0, (r1 - (g01 * a + g12 * c + g13 * d)) / g11)
        c = max(0.0, (r2 - (g02 * a + g12 * b + g23 * d)) / g22)
        d = max(0.0, (r3 - (g03 * a + g13 * b + g23 * c)) / g33)
    return [a, b, c, d]


def _clip(value: float, low: float, high: float) -> float:
    return min(high, max(low, value))
