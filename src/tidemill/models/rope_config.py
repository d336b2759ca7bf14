"""Reads rope parameters from a config, in every notation that checkpoints use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.config import (
    MAX_POSITIONS,
    ConfigReader,
    checked_integer,
    checked_number,
    short_repr,
)
from tidemill.models.rope import Rope, RopeScaling

_DEFAULT_THETA = 10000.0
_ORIGINAL = "original_max_position_embeddings"
# rope type -> (keys it must have, keys it may have)
_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    # Scales only beyond the trained context.
    "dynamic": (frozenset({"factor"}), frozenset({_ORIGINAL, "alpha"})),
    "llama3": (frozenset({"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL}),
               frozenset()),
    "yarn": (
        frozenset({"factor"}),
        frozenset({_ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale",
                   "mscale_all_dim", "truncate"}),
    ),
    # Frequencies of the whole head, of which only the first share rotates (Gemma 4).
    "proportional": (frozenset(), frozenset({"factor"})),
    "longrope": (
        frozenset({"short_factor", "long_factor"}),
        frozenset({_ORIGINAL, "factor", "attention_factor"}),
    ),
}  # fmt: skip
_OLD_NAMES = {"su": "longrope"}


def read_rope(
    config: ConfigReader,
    head_dim: int,
    *,
    part: str | None = None,
    theta: float = _DEFAULT_THETA,
    partial: float = 1.0,
) -> Rope:
    """Rope from either notation: `rope_parameters` (transformers 5), or `rope_theta` with
    `rope_scaling` (earlier versions).

    Args:
        config: the config.
        head_dim: of the layers.
        part: name of an object inside `rope_parameters`, for models whose layers differ.
        theta: the base for a config that names none.
        partial: the share of a head's dimensions that rotate, for a config that names none.

    Raises:
        TidemillError: MODEL_FILE for wrong values, UNSUPPORTED for an unknown rope type or key.
    """
    theta = config.number("rope_theta", theta)
    partial = config.number("partial_rotary_factor", partial)
    section, key = _rope_section(config)
    if part is not None and isinstance(section.get(part), dict):
        section, key = dict(section[part]), f"{key}.{part}"
    theta = checked_number(f"{key}.rope_theta", section.pop("rope_theta", theta))
    kind = section.pop("rope_type", section.pop("type", "default"))
    section.pop("type", None)
    kind = _OLD_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in _KEYS:
        known = ", ".join(_KEYS)
        raise unsupported(
            f"{key}.rope_type", f"{key}.rope_type {short_repr(kind)} is not supported: {known} are"
        )
    partial = checked_number(
        f"{key}.partial_rotary_factor", section.pop("partial_rotary_factor", None) or partial
    )
    dim = int(head_dim * partial)
    if kind == "proportional":
        dim -= dim % 2
    if partial > 1.0 or dim < 2 or dim % 2:
        raise model_file_error(
            f"partial_rotary_factor {partial:g} of head_dim {head_dim} must be an even number of "
            "dimensions, at most all",
            param="partial_rotary_factor",
        )
    _check_keys(section, kind, key)
    if kind == "proportional":  # pairs are spaced as if the whole head rotated
        factor = _Numbers(section, key)("factor", 1.0)
        return Rope(theta, head_dim, proportional(dim // 2, head_dim // 2, factor))
    return Rope(theta, dim, _scaling(config, kind, section, key, dim // 2))


def proportional(rotating: int, pairs: int, factor: float = 1.0) -> RopeScaling | None:
    """Scaling of a rope over `pairs` pairs of which only the first `rotating` rotate."""
    if rotating == pairs and factor == 1.0:
        return None
    divisors = (factor,) * rotating + (math.inf,) * (pairs - rotating)
    return RopeScaling("factors", factors=divisors)


def _check_keys(section: Mapping[str, Any], kind: str, key: str) -> None:
    required, allowed = _KEYS[kind]
    for name, value in section.items():
        if name not in required | allowed and value is not None:
            raise unsupported(f"{key}.{name}", f"{key}.{name} is not known for rope type {kind!r}")
    missing = sorted(n for n in required if section.get(n) is None)
    if missing:
        raise model_file_error(f"{key} of type {kind!r} lacks {', '.join(missing)}", param=key)


def _rope_section(config: ConfigReader) -> tuple[dict[str, Any], str]:
    new, old = config.raw("rope_parameters"), config.raw("rope_scaling")
    if new and old:
        kept = _as_dict("rope_parameters", new)
        if any(kept.get(k, v) != v for k, v in _as_dict("rope_scaling", old).items()):
            raise model_file_error(
                "rope_parameters and rope_scaling contradict each other; keep one",
                param="rope_scaling",
            )
    key = "rope_parameters" if new else "rope_scaling"
    return dict(_as_dict(key, new or old or {})), key


def _as_dict(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise model_file_error(f"config key {key!r} must be an object", param=key)
    return value


def _scaling(
    config: ConfigReader, kind: str, section: Mapping[str, Any], key: str, pairs: int
) -> RopeScaling | None:
    if kind == "default":
        return None
    if section.get("alpha") is not None:
        raise unsupported(f"{key}.alpha", f"{key}.alpha is not supported")
    number = _Numbers(section, key)
    if kind == "dynamic":
        if pairs < 2:
            raise model_file_error(f"{key} of type 'dynamic' needs 4 dimensions or more", param=key)
        # As in transformers, the section's own context before scaling is ignored.
        trained = config.integer("max_position_embeddings", high=MAX_POSITIONS)
        return RopeScaling("dynamic", number("factor"), original_context=trained)
    if kind == "linear":
        return RopeScaling("linear", number("factor"))
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low > high:  # Llama 4 has no frequencies between
            raise model_file_error(
                f"{key}.low_freq_factor ({low:g}) must not exceed high_freq_factor ({high:g})",
                param=key,
            )
        context = _original(config, section, key)
        return RopeScaling("llama3", number("factor"), low, high, context)
    if kind == "yarn":
        return _yarn(config, section, key)
    return _longrope(config, section, key, pairs)


class _Numbers:
    """Positive numbers of a section."""

    def __init__(self, section: Mapping[str, Any], key: str) -> None:
        self._section = section
        self._key = key

    def __call__(self, name: str, default: float | None = None) -> float:
        value = self._section.get(name)
        return checked_number(f"{self._key}.{name}", default if value is None else value)


def _original(config: ConfigReader, section: Mapping[str, Any], key: str) -> int:
    """The context before scaling: the section's, else the config's, else the whole context."""
    value = section.get(_ORIGINAL)
    if value is not None:
        return checked_integer(f"{key}.{_ORIGINAL}", value, 1, MAX_POSITIONS)
    found = config.optional_integer(_ORIGINAL, high=MAX_POSITIONS)
    return found or config.integer("max_position_embeddings", high=MAX_POSITIONS)


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def score_factor(config: ConfigReader) -> float:
    """Factor of the scores in DeepSeek's yarn, in addition to the one of cosines and sines."""
    section, key = _rope_section(config)
    if section.get("rope_type", section.get("type", "default")) == "default":
        return 1.0
    if not section.get("mscale_all_dim"):
        return 1.0
    number = _Numbers(section, key)
    return _mscale(number("factor"), number("mscale_all_dim")) ** 2


def _yarn(config: ConfigReader, section: Mapping[str, Any], key: str) -> RopeScaling:
    number = _Numbers(section, key)
    factor = number("factor")
    attention = _mscale(factor)
    if section.get("mscale") and section.get("mscale_all_dim"):
        attention = _mscale(factor, number("mscale")) / _mscale(factor, number("mscale_all_dim"))
    truncate = section.get("truncate")
    if truncate is not None and not isinstance(truncate, bool):
        raise model_file_error(f"{key}.truncate must be true or false", param=key)
    return RopeScaling(
        "yarn",
        factor,
        original_context=_original(config, section, key),
        attention_factor=number("attention_factor", attention),
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        truncate=truncate is not False,
    )


def _longrope(
    config: ConfigReader, section: Mapping[str, Any], key: str, pairs: int
) -> RopeScaling:
    original = _original(config, section, key)
    number = _Numbers(section, key)
    context = config.integer("max_position_embeddings", high=MAX_POSITIONS)
    factor = number("factor", context / original)
    attention = 1.0
    if factor > 1 and original > 1:
        attention = math.sqrt(1 + math.log(factor) / math.log(original))
    factors = {}
    for name in ("short_factor", "long_factor"):
        values = section[name]
        if not isinstance(values, list) or len(values) != pairs:
            raise model_file_error(f"{key}.{name} must list {pairs} numbers", param=f"{key}.{name}")
        factors[name] = tuple(checked_number(f"{key}.{name}", v) for v in values)
    return RopeScaling(
        "longrope",
        factor,
        original_context=original,
        factors=factors["long_factor"],
        short_factors=factors["short_factor"],
        attention_factor=number("attention_factor", attention),
    )
