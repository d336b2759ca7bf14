"""Samplers beyond temperature, top_k, top_p, min_p and penalties: fields as data.

docs/sampling.md has their definitions and order.
"""

from __future__ import annotations

_INT32_MAX = 2**31 - 1

MAX_ALLOWED_TOKENS = 2**18
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_TOKENS = 64
MAX_DRY_BREAKERS = 64

NUMBERS: dict[str, tuple[float, float]] = {
    "typical_p": (0.0, 1.0),
    "top_a": (0.0, 1.0),
    "top_n_sigma": (-1.0, 100.0),
    "epsilon_cutoff": (0.0, 1.0),
    "eta_cutoff": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "smoothing_factor": (0.0, 100.0),
    # Outside of it the transformation would not preserve the order of the tokens.
    "smoothing_curve": (1.0, 3.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
}
"""Fields that are numbers, and their ranges."""

INTEGERS: dict[str, tuple[int, int]] = {
    "dry_allowed_length": (1, _INT32_MAX),
    "dry_penalty_last_n": (-1, _INT32_MAX),
    "repeat_last_n": (-1, _INT32_MAX),
    "no_repeat_ngram_size": (0, _INT32_MAX),
}
"""Fields that are whole numbers, and their ranges."""

CHOOSING: dict[str, float] = {
    "typical_p": 1.0,
    "top_a": 0.0,
    "top_n_sigma": 0.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "smoothing_factor": 0.0,
}
"""Fields that only choose among tokens, and the values that choose all."""
