"""The cache of a transformers model for one sequence, and how the model continues from it.

Models differ in how they take their past back: as a cache passed to the first call, as one that
they create, or not at all. No attribute states it, so `find_call_style` tries each call style.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from tidemill.backends.base import Int32
from tidemill.base.log import get_logger

_log = get_logger(__name__)

# Names of the cache in a model's outputs, which are also its argument names.
_CACHES = ("past_key_values", "cache_params", "state")
_PROBED = 24
_CUT = 9
# Allowed difference as a fraction of the logits' standard deviation: kernels differ by less. A
# past that the model misreads changes the logits by about the whole deviation.
_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.3}


class CallStyle(StrEnum):
    """How a model continues after the tokens it has computed."""

    PIECES = "pieces"  # any number of tokens per call
    TOKENS = "tokens"  # one token per call
    RECOMPUTE = "recompute"  # no cache: every call starts at the first token


@dataclass(slots=True)
class Past:
    """The cached past of a sequence.

    Attributes:
        tokens: int32 [count]: the tokens it covers.
        cache: argument name and cache object for these tokens; None: they must be recomputed.
    """

    tokens: Int32
    cache: tuple[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Size of the cache's tensors in bytes."""
        return _nbytes(self.cache, set())


NOTHING = Past(np.zeros(0, np.int32))


class Stepper:
    """Computes tokens of one sequence after its past.

    Args:
        model: a transformers model.
        style: how it continues.
    """

    def __init__(self, model: Any, style: CallStyle = CallStyle.PIECES) -> None:
        self.model = model
        self.style = style
        parameters = inspect.signature(model.forward).parameters
        self._positions = "position_ids" in parameters
        self._keeps = "logits_to_keep" in parameters
        # The rule that transformers' `generate` uses.
        mamba = "mamba" in type(model).__name__.lower()
        self._cache_name = "cache_params" if mamba else "past_key_values"

    def logits(self, past: Past, tokens: Int32, *, every: bool) -> tuple[torch.Tensor, Past]:
        """float32 logits of the last token [1, vocab], or of every token [count, vocab]; and the
        past extended by the tokens. `past.cache` is consumed."""
        parts = []
        for piece in self._pieces(past, tokens):
            cache = self._cache_for(past)
            inputs = self._inputs(past, piece, cache)
            if self._keeps:
                inputs["logits_to_keep"] = 0 if every else 1
            outputs = self.model(**inputs, return_dict=True)
            past = self._after(past, piece, outputs, cache)
            found = outputs.logits[0]
            # Without a cache the outputs include the tokens before the piece.
            parts.append(found[-len(piece) :] if every else found[-1:])
        logits = torch.cat(parts) if every else parts[-1]
        return logits.float(), past

    def hidden(self, past: Past, tokens: Int32) -> tuple[torch.Tensor, Past]:
        """Final hidden states float32 [count, hidden], the output layer's input; and the past."""
        parts = []
        for piece in self._pieces(past, tokens):
            cache = self._cache_for(past)
            inputs = self._inputs(past, piece, cache)
            inputs.pop("logits_to_keep", None)
            outputs = self.model.base_model(**inputs, return_dict=True)
            past = self._after(past, piece, outputs, cache)
            parts.append(outputs.last_hidden_state[0][-len(piece) :])
        return torch.cat(parts).float(), past

    def _pieces(self, past: Past, tokens: Int32) -> list[Int32]:
        """The tokens split as the model takes them. A past without a cache is recomputed with
        them."""
        if self.style is CallStyle.TOKENS and past.cache is not None:
            return list(np.split(tokens, len(tokens)))
        return [tokens]

    def _cache_for(self, past: Past) -> tuple[str, Any] | None:
        """The cache passed with the next tokens, and its argument name."""
        if past.cache is not None or self.style is CallStyle.RECOMPUTE:
            return past.cache
        if not self.model._supports_default_dynamic_cache():
            return None
        config = self.model.config.get_text_config(decoder=True)
        return self._cache_name, DynamicCache(config=config)

    def _inputs(self, past: Past, piece: Int32, cache: tuple[str, Any] | None) -> dict[str, Any]:
        device = self.model.device
        known = torch.from_numpy(np.concatenate([past.tokens, piece])).long()[None].to(device)
        given: dict[str, Any] = {"use_cache": self.style is not CallStyle.RECOMPUTE}
        given["attention_mask"] = torch.ones_like(known)
        if self._positions:
            given["position_ids"] = torch.arange(known.shape[1], device=device)[None]
        if cache is not None:
            given[cache[0]] = cache[1]
        fresh = past.cache is None
        inputs = self.model.prepare_inputs_for_generation(
            known,
            next_sequence_length=None if fresh else len(piece),
            is_first_iteration=fresh,
            **given,
        )
        return dict(inputs)

    def _after(self, past: Past, piece: Int32, outputs: Any, cache: tuple[str, Any] | None) -> Past:
        tokens = np.concatenate([past.tokens, piece])
        past.cache = None
        if self.style is CallStyle.RECOMPUTE:
            return Past(tokens)
        for name in _CACHES:
            found = getattr(outputs, name, None)
            if found is not None:
                return Past(tokens, (name, found))
        return Past(tokens, cache)  # some models update the cache in place and return none


def find_call_style(model: Any, vocab_size: int, dtype: torch.dtype) -> CallStyle:
    """The most capable call style whose logits equal those of one full pass.

    Raises:
        Exception: any error of the model in computing a full pass.
    """
    tokens = (np.arange(_PROBED, dtype=np.int64) * 7919 % vocab_size).astype(np.int32)
    whole, _ = Stepper(model, CallStyle.RECOMPUTE).logits(Past(NOTHING.tokens), tokens, every=True)
    spread = float(whole.std()) or 1.0
    for style in (CallStyle.PIECES, CallStyle.TOKENS):
        stepper = Stepper(model, style)
        try:
            past, parts = Past(NOTHING.tokens), []
            for piece in np.split(tokens, (_CUT, _PROBED - 2, _PROBED - 1)):
                found, past = stepper.logits(past, piece, every=True)
                if past.cache is None:
                    return CallStyle.RECOMPUTE
                parts.append(found)
        except Exception as error:  # unsupported; this is what the probe finds out
            _log.debug("the model does not go on in %s: %s", style.name.lower(), error)
            continue
        apart = float((torch.cat(parts) - whole).abs().max())
        if apart <= _TOLERANCE[dtype] * spread:
            return style
    return CallStyle.RECOMPUTE


def _nbytes(value: Any, seen: set[int]) -> int:
    """Size of the tensors in a cache in bytes, whatever object holds them."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_nbytes(item, seen) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_nbytes(item, seen) for item in value)
    # Only transformers' own classes: a layer's cache may hold a config or other objects.
    if type(value).__module__.startswith("transformers.") and not hasattr(value, "to_dict"):
        return sum(_nbytes(item, seen) for item in vars(value).values())
    return 0
