"""What transformers keeps of a sequence, and how a model goes on from it.

How a model wants its past handed back differs: as a cache that is given to it first, as one it
makes, not at all. What works is found by trying (`find_manner`), since no attribute says it.
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

# Where models return what they keep, which is also where they take it.
_CACHES = ("past_key_values", "cache_params", "state")
_PROBED = 24
_CUT = 9
# Of the logits' spread: what differing kernels may do to float32 and to bfloat16. A past that is
# not understood moves them by the whole of it.
_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.3}


class Manner(StrEnum):
    """How a model goes on behind what it has computed."""

    PIECES = "pieces"  # any number of tokens at once
    TOKENS = "tokens"  # one token at a time
    ANEW = "anew"  # from the first token, always: it keeps nothing


@dataclass(slots=True)
class Past:
    """What a sequence leaves.

    Attributes:
        tokens: int32 [count]: what it is the past of.
        cache: the name of a model's argument, and what it is given to cover these tokens; None: it
            has to be made from them again.
    """

    tokens: Int32
    cache: tuple[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the cache's tensors."""
        return _nbytes(self.cache, set())


NOTHING = Past(np.zeros(0, np.int32))


class Stepper:
    """Computes tokens of one sequence behind its past.

    Args:
        model: of transformers.
        manner: how it goes on.
    """

    def __init__(self, model: Any, manner: Manner = Manner.PIECES) -> None:
        self.model = model
        self.manner = manner
        parameters = inspect.signature(model.forward).parameters
        self._positions = "position_ids" in parameters
        self._keeps = "logits_to_keep" in parameters
        # As transformers' generate decides it.
        mamba = "mamba" in type(model).__name__.lower()
        self._cache_name = "cache_params" if mamba else "past_key_values"

    def logits(self, past: Past, tokens: Int32, *, every: bool) -> tuple[torch.Tensor, Past]:
        """float32 logits of the last token [1, vocab], or of every one [count, vocab]; and the
        past with the tokens. `past.cache` is used up."""
        parts = []
        for piece in self._pieces(past, tokens):
            cache = self._cache_for(past)
            inputs = self._inputs(past, piece, cache)
            if self._keeps:
                inputs["logits_to_keep"] = 0 if every else 1
            outputs = self.model(**inputs, return_dict=True)
            past = self._after(past, piece, outputs, cache)
            found = outputs.logits[0]
            # Of one computed anew, what stands before the piece comes with it.
            parts.append(found[-len(piece) :] if every else found[-1:])
        logits = torch.cat(parts) if every else parts[-1]
        return logits.float(), past

    def hidden(self, past: Past, tokens: Int32) -> tuple[torch.Tensor, Past]:
        """float32 [count, hidden]: what the output layer reads of the tokens; and the past."""
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
        """The tokens as the model takes them; what was lost of the past is computed again."""
        if self.manner is Manner.TOKENS and past.cache is not None:
            return list(np.split(tokens, len(tokens)))
        return [tokens]

    def _cache_for(self, past: Past) -> tuple[str, Any] | None:
        """The cache that goes with the next tokens, and the name it is given by."""
        if past.cache is not None or self.manner is Manner.ANEW:
            return past.cache
        if not self.model._supports_default_dynamic_cache():
            return None
        config = self.model.config.get_text_config(decoder=True)
        return self._cache_name, DynamicCache(config=config)

    def _inputs(self, past: Past, piece: Int32, cache: tuple[str, Any] | None) -> dict[str, Any]:
        device = self.model.device
        known = torch.from_numpy(np.concatenate([past.tokens, piece])).long()[None].to(device)
        given: dict[str, Any] = {"use_cache": self.manner is not Manner.ANEW}
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
        if self.manner is Manner.ANEW:
            return Past(tokens)
        for name in _CACHES:
            found = getattr(outputs, name, None)
            if found is not None:
                return Past(tokens, (name, found))
        return Past(tokens, cache)  # some write into the one they are given, and return none


def find_manner(model: Any, vocab_size: int, dtype: torch.dtype) -> Manner:
    """How a model goes on: the most it does with the same logits as in one go.

    Raises:
        Exception: whatever the model raises on computing anything at all.
    """
    tokens = (np.arange(_PROBED, dtype=np.int64) * 7919 % vocab_size).astype(np.int32)
    whole, _ = Stepper(model, Manner.ANEW).logits(Past(NOTHING.tokens), tokens, every=True)
    spread = float(whole.std()) or 1.0
    for manner in (Manner.PIECES, Manner.TOKENS):
        stepper = Stepper(model, manner)
        try:
            past, parts = Past(NOTHING.tokens), []
            for piece in np.split(tokens, (_CUT, _PROBED - 2, _PROBED - 1)):
                found, past = stepper.logits(past, piece, every=True)
                if past.cache is None:
                    return Manner.ANEW
                parts.append(found)
        except Exception as error:  # it cannot: that is what is asked
            _log.debug("the model does not go on in %s: %s", manner.name.lower(), error)
            continue
        apart = float((torch.cat(parts) - whole).abs().max())
        if apart <= _TOLERANCE[dtype] * spread:
            return manner
    return Manner.ANEW


def _nbytes(value: Any, seen: set[int]) -> int:
    """Bytes of the tensors in a cache, whatever holds them."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_nbytes(item, seen) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_nbytes(item, seen) for item in value)
    # Of transformers' own classes alone: a layer's cache may hold a config, and so on.
    if type(value).__module__.startswith("transformers.") and not hasattr(value, "to_dict"):
        return sum(_nbytes(item, seen) for item in vars(value).values())
    return 0
