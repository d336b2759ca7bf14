"""llama.cpp's names of samplers, in the order in which this server applies them."""

from __future__ import annotations

EVERYWHERE = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""Samplers that a model may recommend, so that they may be on where a request says nothing."""

# Those of one number look at the same distribution: their order makes no difference.
ORDER: dict[str, int] = {
    "penalties": 0,
    "dry": 1,
    "temperature": 2,
    **dict.fromkeys(("top_n_sigma", "top_k", "top_p", "min_p"), 3),
    **dict.fromkeys(("typ_p", "typical_p"), 4),
    "xtc": 5,
}
"""Name -> place in the order."""

OFF: dict[str, dict[str, float]] = {
    "penalties": {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    },
    "dry": {"dry_multiplier": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "typ_p": {"typical_p": 1.0},
    "xtc": {"xtc_probability": 0.0},
}
"""Name -> the parameters that turn it off."""
