"""Reading a checkpoint's config: typed, bounded, and with no key overlooked.

A config is untrusted input. Every value is checked before it sizes anything, and a key that no
table knows is an error: it could change the model's arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.spec import Rope, RopeScaling

MAX_SIZE = 2**24  # any one extent of a tensor
MAX_LAYERS = 1024
MAX_POSITIONS = 2**31 - 1

# Keys that do not change what a forward pass computes.
_HARMLESS_TEXT = """
    architectures model_type transformers_version torch_dtype dtype use_cache bos_token_id
    eos_token_id pad_token_id unk_token_id sep_token_id initializer_range attention_dropout
    hidden_dropout resid_pdrop embd_pdrop output_attentions output_hidden_states return_dict
    return_dict_in_generate chunk_size_feed_forward is_encoder_decoder is_decoder id2label label2id
    problem_type pretraining_tp tokenizer_class task_specific_params finetuning_task
    tie_encoder_decoder torchscript use_bfloat16 max_length min_length do_sample temperature top_k
    top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size num_beams
    num_beam_groups diversity_penalty early_stopping num_return_sequences output_scores
    encoder_no_repeat_ngram_size bad_words_ids suppress_tokens begin_suppress_tokens
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty
    prefix decoder_start_token_id cross_attention_hidden_size add_cross_attention tf_legacy_loss
    pruned_heads unsloth_version unsloth_fixed is_llama_config transformers.js_config
    attn_implementation max_sequence_length model_max_length neftune_noise_alpha
"""
HARMLESS = frozenset(_HARMLESS_TEXT.split())

# Keys with a meaning that is not implemented, and what to do about each.
_REFUSED = {
    "auto_map": "the checkpoint brings its own code, which is never run",
}


class ConfigReader:
    """Takes values out of a config and remembers which keys were used.

    Args:
        config: the parsed config.json, or the same keys made from GGUF metadata.
        family: named in errors.

    All getters raise TidemillError of kind MODEL_FILE naming the key when its value is missing
    (without a default), of the wrong type or out of range. A key with the value null counts as
    absent.
    """

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        self._config = config
        self._family = family
        self._used: set[str] = set()

    def raw(self, key: str) -> Any:
        """The value of `key` as it is, None when absent."""
        self._used.add(key)
        return self._config.get(key)

    def integer(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_SIZE
    ) -> int:
        """An integer in [low, high]."""
        value = self.raw(key)
        if value is None:
            value = self._default(key, default)
        return checked_integer(key, value, low, high)

    def optional_integer(self, key: str, *, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """The same, or None when the key is absent."""
        return None if self.raw(key) is None else self.integer(key, low=low, high=high)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.raw(key)
        return checked_number(key, self._default(key, default) if value is None else value)

    def boolean(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise model_file_error(f"config key {key!r} must be true or false, got {value!r}")
        return value

    def must_be(self, key: str, *allowed: object) -> None:
        """Refuse every value of `key` but the allowed ones (and absence)."""
        value = self.raw(key)
        if value is not None and value not in allowed:
            choices = " or ".join(repr(a) for a in allowed)
            raise unsupported(
                key, f"config key {key!r} is {value!r}; {self._family} is supported with {choices}"
            )

    def finish(self) -> None:
        """Refuse keys that nobody read and no table calls harmless.

        Keys that begin with an underscore are bookkeeping; unknown ones that are null, false or
        empty switch nothing on.
        """
        for key, value in self._config.items():
            if key in self._used or key in HARMLESS or key.startswith("_"):
                continue
            if value is None or value is False or value in ("", [], {}):
                continue
            if key in _REFUSED:
                raise unsupported(key, f"config key {key!r}: {_REFUSED[key]}")
            raise unsupported(
                key,
                f"config key {key!r} is not known for {self._family} and could change what the "
                "model computes; remove it from config.json if you know that it does not",
            )

    def _default(self, key: str, default: Any) -> Any:
        if default is None:
            raise model_file_error(f"config key {key!r} is missing", param=key)
        return default


def checked_integer(key: str, value: object, low: int, high: int) -> int:
    """`value` if it is an integer in [low, high]; MODEL_FILE error naming `key` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise model_file_error(
            f"config key {key!r} must be an integer between {low} and {high}, got {_short(value)}",
            param=key,
        )
    return value


def checked_number(key: str, value: object) -> float:
    """`value` as a finite float above 0; MODEL_FILE error naming `key` otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and number > 0:
            return number
    raise model_file_error(
        f"config key {key!r} must be a finite number above 0, got {_short(value)}", param=key
    )


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."


_DEFAULT_THETA = 10000.0
_ROPE_KEYS = {
    "default": {},
    "linear": {"factor"},
    "llama3": {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    },
}


def read_rope(config: ConfigReader, head_dim: int) -> Rope:
    """Rope from either spelling: `rope_parameters` (transformers 5), or `rope_theta` with
    `rope_scaling` (before).

    Raises:
        TidemillError: MODEL_FILE for wrong values, UNSUPPORTED for a rope type or key not known.
    """
    theta = config.number("rope_theta", _DEFAULT_THETA)
    section, key = _rope_section(config)
    theta = checked_number(f"{key}.rope_theta", section.pop("rope_theta", theta))
    kind = section.pop("rope_type", section.pop("type", "default"))
    section.pop("type", None)
    if not isinstance(kind, str) or kind not in _ROPE_KEYS:
        known = ", ".join(_ROPE_KEYS)
        raise unsupported(
            f"{key}.rope_type", f"{key}.rope_type {_short(kind)} is not supported: {known} are"
        )
    if section.pop("partial_rotary_factor", 1.0) != 1.0:
        raise unsupported(
            f"{key}.partial_rotary_factor", f"{key}.partial_rotary_factor: only 1 is supported"
        )
    for name, value in section.items():
        if name not in _ROPE_KEYS[kind] and value is not None:
            raise unsupported(f"{key}.{name}", f"{key}.{name} is not known for rope type {kind!r}")
    missing = sorted(n for n in _ROPE_KEYS[kind] if section.get(n) is None)
    if missing:
        raise model_file_error(f"{key} of type {kind!r} lacks {', '.join(missing)}", param=key)
    return Rope(theta, head_dim, _scaling(kind, section, key))


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


def _scaling(kind: str, section: Mapping[str, Any], key: str) -> RopeScaling | None:
    if kind == "default":
        return None
    factor = checked_number(f"{key}.factor", section["factor"])
    if kind == "linear":
        return RopeScaling("linear", factor)
    low = checked_number(f"{key}.low_freq_factor", section["low_freq_factor"])
    high = checked_number(f"{key}.high_freq_factor", section["high_freq_factor"])
    if low >= high:
        raise model_file_error(
            f"{key}.low_freq_factor ({low:g}) must be below high_freq_factor ({high:g})", param=key
        )
    original = "original_max_position_embeddings"
    context = checked_integer(f"{key}.{original}", section[original], 1, MAX_POSITIONS)
    return RopeScaling("llama3", factor, low, high, context)
