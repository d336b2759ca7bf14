"""Rotary position embedding: its parameters and the resulting frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies beyond the trained context.

    Attributes:
        kind: ``linear``, ``dynamic``, ``llama3``, ``yarn``, ``longrope``, or ``factors``
            (per-frequency divisors, GGUF's rope_freqs).
        factor: the scaling factor.
        low_freq_factor, high_freq_factor: of llama3 (Llama 3.1's rule).
        original_context: the context before scaling; for all kinds except linear and factors.
        factors: of ``factors`` and ``longrope``: one divisor per frequency, rope.dim / 2 of them.
        short_factors: of longrope: divisors for a context no longer than the original one.
        attention_factor: multiplies cosines and sines (yarn, longrope).
        beta_fast, beta_slow: of yarn: number of rotations within the original context above which a
            frequency is unchanged, and below which it is divided by factor.
        truncate: yarn's bounds are rounded to whole frequencies.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021), in the rotate-half convention. Weights of models
    that rotate neighbouring values are reordered to it at load.

    Attributes:
        theta: base of the frequencies.
        dim: number of a head's dimensions that rotate (the first ones).
        scaling: see `RopeScaling`; None for none.
    """

    theta: float
    dim: int
    scaling: RopeScaling | None = None

    @property
    def attention_factor(self) -> float:
        """Factor of cosines and sines."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor


def inverse_frequencies(rope: Rope, context: int | None = None) -> list[float]:
    """Angle per position of each rotating pair, scaling applied: dim / 2 numbers.

    Args:
        rope: the parameters.
        context: the longest context served; None for a long one. Longrope selects its factors by
            it, and dynamic its base, once: a selection by each sequence's length would change
            cached K.

    The llama3 rule (Llama 3.1's reference code and transformers' `rope_type="llama3"`): wavelengths
    longer than original_context / low_freq_factor are divided by factor, those shorter than
    original_context / high_freq_factor are unchanged, and those between are interpolated linearly.
    The yarn rule: Peng et al. 2023, section 3.2. The dynamic rule: that of transformers'
    `rope_type="dynamic"` for a sequence of `context` tokens.
    """
    base = [rope.theta ** (-2.0 * i / rope.dim) for i in range(rope.dim // 2)]
    scaling = rope.scaling
    if scaling is None:
        return base
    if scaling.kind == "linear":
        return [f / scaling.factor for f in base]
    if scaling.kind == "dynamic":
        return _dynamic(base, rope, scaling, context)
    if scaling.kind == "factors":
        return [f / d for f, d in zip(base, scaling.factors, strict=True)]
    if scaling.kind == "longrope":
        short = context is not None and context <= scaling.original_context
        factors = scaling.short_factors if short else scaling.factors
        return [f / d for f, d in zip(base, factors, strict=True)]
    if scaling.kind == "llama3":
        return [_llama3(f, scaling) for f in base]
    if scaling.kind == "yarn":
        return _yarn(base, rope, scaling)
    raise ValueError(f"unknown rope scaling {scaling.kind!r}")


@dataclass(frozen=True, slots=True)
class Reach:
    """Context lengths of a model with scaled ropes.

    Attributes:
        usual: the default number of positions served.
        longest: the largest number of positions that can be configured.
    """

    usual: int
    longest: int


def reach(ropes: Iterable[Rope | None], trained: int, limit: int) -> Reach:
    """Context lengths of layers with these ropes that were trained for `trained` positions, at most
    `limit`.

    When all rotating layers are scaled by yarn, the context is the original one times its factor;
    with the linear rule it is the trained one times its factor. (Gemma 3 scales only some layers,
    and its trained context includes the scaling.) The dynamic rule leaves frequencies unchanged
    within the trained context, so a longer context is used only when configured. The other rules
    imply no length.
    """
    scalings = {rope.scaling for rope in ropes if rope is not None}
    scaling = next(iter(scalings)) if len(scalings) == 1 else None
    if scaling is None or scaling.kind not in ("linear", "dynamic", "yarn"):
        return Reach(trained, trained)
    original = trained if scaling.kind == "linear" else scaling.original_context
    stretched = int(min(max(trained, original * scaling.factor), limit))
    return Reach(trained if scaling.kind == "dynamic" else stretched, stretched)


def _dynamic(base: list[float], rope: Rope, s: RopeScaling, context: int | None) -> list[float]:
    length = s.original_context * s.factor if context is None else context
    if length <= s.original_context:
        return base
    grown = s.factor * (length / s.original_context - 1.0) + 1.0
    # With logarithms, since a config may name a factor whose powers overflow a float.
    theta = math.log(rope.theta) + math.log(grown) * rope.dim / (rope.dim - 2)
    return [math.exp(-2.0 * i / rope.dim * theta) for i in range(rope.dim // 2)]


def _llama3(frequency: float, s: RopeScaling) -> float:
    wavelength = 2.0 * math.pi / frequency
    if wavelength > s.original_context / s.low_freq_factor:
        return frequency / s.factor
    if wavelength <= s.original_context / s.high_freq_factor:
        return frequency
    smooth = (s.original_context / wavelength - s.low_freq_factor) / (
        s.high_freq_factor - s.low_freq_factor
    )
    return (1.0 - smooth) * frequency / s.factor + smooth * frequency


def _yarn(base: list[float], rope: Rope, s: RopeScaling) -> list[float]:
    def bound(rotations: float) -> float:
        turns = s.original_context / (rotations * 2.0 * math.pi)
        return rope.dim * math.log(turns) / (2.0 * math.log(rope.theta))

    low, high = bound(s.beta_fast), bound(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = high - low if high != low else 0.001
    kept = [1.0 - min(max((i - low) / width, 0.0), 1.0) for i in range(len(base))]
    return [f / s.factor * (1.0 - k) + f * k for f, k in zip(base, kept, strict=True)]
