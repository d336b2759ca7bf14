"""Candidates of beams: the reference of their semantics, see `backends.base.CandidateArrays`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import CandidateArrays, Float32, SamplingInputs
from tidemill.backends.torch.filters import best
from tidemill.backends.torch.sampling import (
    NO_TOKEN,
    NOT_FINITE,
    adjust,
    log_softmax,
)


class Found(NamedTuple):
    """The candidates of one row: ids, scores and logprobs, best first."""

    ids: NDArray[np.int64]
    scores: Float32
    logprobs: Float32

    @property
    def token(self) -> int:
        """The best candidate, or NO_TOKEN."""
        return int(self.ids[0]) if len(self.ids) else NO_TOKEN


def find(
    logits: Float32, s: int, inputs: SamplingInputs, mask: NDArray[np.bool_] | None,
    pending: int | None,
) -> Found | None:  # fmt: skip
    """The candidates of row `s`; None where the logits are not finite. See `sampling.sample`."""
    if np.isnan(logits).any():
        return None
    logprobs = log_softmax(logits).astype(np.float32)
    scores = logprobs.copy()
    adjust(scores, s, inputs, mask, pending)
    assert inputs.candidates is not None
    ids = best(scores, int(inputs.candidates[s]))
    ids = ids[np.isfinite(scores[ids])]
    return Found(ids, scores[ids], logprobs[ids])


def token_of(found: Found | None) -> int:
    """What `StepOutputs.sampled` holds for a beam."""
    return NOT_FINITE if found is None else found.token


def arrays(inputs: SamplingInputs, found: dict[int, Found | None]) -> CandidateArrays | None:
    """The candidates of all sampling rows; None where no row is a beam."""
    if inputs.candidates is None:
        return None
    shape = len(inputs.candidates), int(inputs.candidates.max(initial=0))
    out = CandidateArrays(
        np.full(shape, -1, np.int32),
        np.full(shape, np.nan, np.float32),
        np.full(shape, np.nan, np.float32),
    )
    for s, row in found.items():
        if row is not None:
            count = len(row.ids)
            out.ids[s, :count] = row.ids
            out.scores[s, :count] = row.scores
            out.logprobs[s, :count] = row.logprobs
    return out
