"""Reads a checkpoint's config with types and bounds; a key that no table knows is an error.

A config is untrusted input, so every value is checked before it sizes anything. An unknown key
could change the model's arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported

MAX_SIZE = 2**24  # upper bound of any extent of a tensor
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
    attn_implementation router_aux_loss_coef output_router_logits classifier_dropout
    max_sequence_length model_max_length neftune_noise_alpha
"""
HARMLESS = frozenset(_HARMLESS_TEXT.split())

# Keys whose feature is not implemented, and what to do about each.
_REFUSED = {
    "auto_map": "the checkpoint brings its own code, which is never run",
}


class ConfigReader:
    """Reads values from a config and records which keys were used.

    Args:
        config: the parsed config.json, or the same keys made from GGUF metadata.
        family: name of the family, for errors.
        names: our name of a key -> the family's own name, which errors use.

    All getters raise TidemillError of kind MODEL_FILE naming the key when its value is missing
    (without a default), of the wrong type or out of range. A key with the value null counts as
    absent.
    """

    def __init__(
        self, config: Mapping[str, Any], family: str, names: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self._names = names or {}
        self._family = family
        self._used: set[str] = set()

    def raw(self, key: str) -> Any:
        """The unchecked value of `key`, or None when absent."""
        key = self.name(key)
        self._used.add(key)
        return self._config.get(key)

    def name(self, key: str) -> str:
        """The family's own name of a key."""
        return self._names.get(key, key)

    def integer(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_SIZE
    ) -> int:
        """An integer in [low, high]."""
        value = self.raw(key)
        if value is None:
            value = self._default(key, default)
        return checked_integer(self.name(key), value, low, high)

    def optional_integer(self, key: str, *, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """As `integer`, or None when the key is absent."""
        return None if self.raw(key) is None else self.integer(key, low=low, high=high)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.raw(key)
        if value is None:
            value = self._default(key, default)
        return checked_number(self.name(key), value)

    def optional_number(self, key: str) -> float | None:
        """As `number`, or None when the key is absent or zero."""
        return None if not self.raw(key) else self.number(key)

    def boolean(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise model_file_error(
                f"config key {self.name(key)!r} must be true or false, got {value!r}"
            )
        return value

    def must_be(self, key: str, *allowed: object) -> None:
        """Reject all values of `key` except the allowed ones (and absence)."""
        value = self.raw(key)
        if value is not None and value not in allowed:
            choices = " or ".join(repr(a) for a in allowed)
            key = self.name(key)
            raise unsupported(
                key, f"config key {key!r} is {value!r}; {self._family} is supported with {choices}"
            )

    def finish(self) -> None:
        """Reject keys that were not read and that no table lists as harmless.

        Keys that begin with an underscore are bookkeeping. Unknown keys with the value null, false
        or empty enable nothing.
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
            key = self.name(key)
            raise model_file_error(f"config key {key!r} is missing", param=key)
        return default


def checked_integer(key: str, value: object, low: int, high: int) -> int:
    """`value` if it is an integer in [low, high]; MODEL_FILE error naming `key` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise model_file_error(
            f"config key {key!r} must be an integer between {low} and {high}, "
            f"got {short_repr(value)}",
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
        f"config key {key!r} must be a finite number above 0, got {short_repr(value)}", param=key
    )


def short_repr(value: object) -> str:
    """A value as errors show it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."
