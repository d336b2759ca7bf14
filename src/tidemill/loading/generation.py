"""The model authors' generation settings: sampling values, start and end tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import model_file_error


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling values that the model's authors recommend; None where they recommend none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


# Keys that a generation_config.json may preset, and their ranges.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 100.0),
}


def generation_defaults(
    generation: Mapping[str, Any],
) -> tuple[GenerationDefaults, tuple[str, ...]]:
    """Sampling values of a generation_config.json; with do_sample false, temperature 0.

    A value that is not a number or outside the sampling parameters' range is ignored: a default
    must never turn a valid request into an error. The second result lists the ignored values, one
    line each.
    """
    found: dict[str, Any] = {}
    notes: list[str] = []
    for key, (low, high) in _RANGES.items():
        value = generation.get(key)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and low <= value <= high:
            found[key] = int(value) if key == "top_k" else float(value)
        else:
            notes.append(
                f"the model's generation_config.json sets {key} to {str(value)[:40]!r}, which is "
                f"no number between {low:g} and {high:g}: left out"
            )
    if generation.get("do_sample") is False and "temperature" not in generation:
        found["temperature"] = 0.0
    return GenerationDefaults(**found), tuple(notes)


def token_ids(value: Any, key: str, vocab_size: int) -> tuple[int, ...]:
    """A token id, a list of them or null, as a tuple without repetitions."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int) or not 0 <= v < vocab_size:
            raise model_file_error(
                f"{key} must be a token id below vocab_size ({vocab_size}), or a list of them",
                param=key,
            )
    return tuple(dict.fromkeys(values))
