"""Sampling parameters of further samplers as the arrays of `backends.base.SamplerExtras`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import SAMPLER_OPTIONS, SamplerExtras
from tidemill.contract.samplers import CHOOSING, INTEGERS, NUMBERS
from tidemill.contract.sampling import SamplingParams

Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]

_LEAST_SHARE = 1e-30  # keeps one token, as 0 should


@dataclass(frozen=True, slots=True)
class RowOptions:
    """A sequence's options, ready to be gathered: see `SamplerExtras`.

    Attributes:
        record: SAMPLER_OPTIONS []; `allowed` is -1 without a mask, else 0.
        breakers, bad_words: int32.
        allowed: uint8 [bytes], or empty.
    """

    record: NDArray[np.void]
    breakers: Int32
    bad_words: Int32
    allowed: UInt8


def row_options(s: SamplingParams) -> RowOptions | None:
    """The options of a sequence; None where it has none but those of every row."""
    if not (
        any(getattr(s, name) != neutral for name, neutral in CHOOSING.items())
        or s.dry_multiplier
        or s.no_repeat_ngram_size
        or s.bad_words_ids
        or s.allowed_token_ids
        or (s.repeat_last_n >= 0 and s.penalized)
    ):
        return None
    record = np.zeros((), SAMPLER_OPTIONS)
    for name in (*NUMBERS, *INTEGERS):
        record[name] = getattr(s, name)
    record["typical_p"] = max(_LEAST_SHARE, s.typical_p)
    record["top_n_sigma"] = max(0.0, s.top_n_sigma)
    record["allowed"] = 0 if s.allowed_token_ids else -1
    words = list(chain.from_iterable((len(word), *word) for word in s.bad_words_ids))
    return RowOptions(
        record,
        np.array(s.dry_breaker_ids or (), np.int32),
        np.array(words, np.int32),
        _mask(s.allowed_token_ids),
    )


def _mask(ids: Sequence[int]) -> UInt8:
    if not ids:
        return np.zeros(0, np.uint8)
    bits = np.zeros(max(ids) // 8 * 8 + 8, np.uint8)
    bits[np.array(ids, np.int64)] = 1
    return np.packbits(bits, bitorder="little")


def gather_extras(known: Mapping[int, RowOptions], slots: Int32) -> SamplerExtras | None:
    """The options of a step's sampled positions; None where none has any.

    Args:
        known: by slot.
        slots: int32 [S].
    """
    row = np.full(len(slots), -1, np.int32)
    index: dict[int, int] = {}
    for s, slot in enumerate(slots.tolist()):
        if slot in known:
            row[s] = index.setdefault(slot, len(index))
    if not index:
        return None
    found = [known[slot] for slot in index]
    records = np.stack([options.record for options in found])
    masks = [options.allowed for options in found if options.allowed.size]
    records["allowed"] = np.where(
        records["allowed"] < 0, -1, np.cumsum(records["allowed"] >= 0) - 1
    )
    allowed = np.zeros((len(masks), max((len(m) for m in masks), default=0)), np.uint8)
    for i, mask in enumerate(masks):
        allowed[i, : len(mask)] = mask
    return SamplerExtras(
        row,
        records.view(np.uint8).reshape(len(found), SAMPLER_OPTIONS.itemsize),
        *_ragged([options.breakers for options in found]),
        *_ragged([options.bad_words for options in found]),
        allowed,
    )


def _ragged(lists: list[Int32]) -> tuple[Int32, Int32]:
    """Offsets int32 [N + 1] and the concatenated values."""
    starts = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(values) for values in lists], out=starts[1:])
    return starts, np.concatenate(lists)
