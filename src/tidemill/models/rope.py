"""Rotary position embedding: its parameters and the frequencies that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    Attributes:
        kind: ``linear``, ``dynamic``, ``llama3``, ``yarn``, ``longrope``, or ``factors``
            (per-frequency divisors, GGUF's rope_freqs).
        factor: the stretch.
        low_freq_factor, high_freq_factor: of llama3 (Llama 3.1's rule).
        original_context: the context before stretching; of all but linear and factors.
        factors: of ``factors`` and ``longrope``: one divisor per frequency, rope.dim / 2 of them.
        short_factors: of longrope: those for a context no longer than the original one.
        attention_factor: multiplies cosines and sines (yarn, longrope).
        beta_fast, beta_slow: rotations within the original context above which a frequency is kept
            and below which it is divided by factor; of yarn.
        truncate: yarn's bounds are whole frequencies.
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
    that rotate neighbours are put into this order when they are loaded.

    Attributes:
        theta: base of the frequencies.
        dim: how many of a head's dimensions rotate (the first ones).
        scaling: see `RopeScaling`; None for none.
    """

    theta: float
    dim: int
    scaling: RopeScaling | None = None

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied with."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor


def inverse_frequencies(rope: Rope, context: int | None = None) -> list[float]:
    """Angles per position of each rotating pair, scaling applied: dim / 2 numbers.

    Args:
        rope: the parameters.
        context: the longest context served, by which longrope chooses its factors, and dynamic
            its base, once and for all (a choice by each sequence's length would change what is
            cached); None for a long one.

    The llama3 rule: wavelengths longer than original_context / low_freq_factor are divided by
    factor, shorter than original_context / high_freq_factor kept, between interpolated linearly
    (Llama 3.1's reference code and transformers' `rope_type="llama3"`). The yarn rule: Peng et al.
    2023, section 3.2. The dynamic rule: that of transformers' `rope_type="dynamic"` for a sequence
    of `context` tokens.
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
    """How far a model with scaled ropes goes.

    Attributes:
        usual: positions that are served where nobody says otherwise.
        longest: positions that may be asked for.
    """

    usual: int
    longest: int


def reach(ropes: Iterable[Rope | None], trained: int, limit: int) -> Reach:
    """How far layers with these ropes go that were made for `trained` positions, at most `limit`.

    Where every layer that rotates is scaled by yarn, it goes as far as that stretches the original
    context, by the linear rule as far as that stretches the trained one. (Gemma 3 scales some
    layers, whose context is stretched already.) The dynamic rule keeps the trained frequencies
    within the trained context: further only if it is asked for. The other rules say nothing of it.
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
    # By logarithms: a config may name a factor whose powers no float holds.
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
