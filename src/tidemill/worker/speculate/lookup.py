"""Prompt lookup: what followed earlier occurrences of the latest tokens, in the prompt, in the
output and in what the client expects of it (`prediction`).

The drafts are the most frequent continuation of the longest match (Saxena 2023, prompt lookup
decoding; Oliaro et al. 2024, suffix decoding), as many as the match has tokens: the longer it is,
the likelier it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.base import _texts
from tidemill.contract.plan import MOST_CONFIDENT, NewSequence
from tidemill.worker.speculate.drafter import Int32, Proposal, Wanted

MIN_MATCH = 2
"""Tokens of the shortest match whose continuation is drafted."""

MAX_TOKENS = 2**16
"""Tokens of a sequence that are indexed, the latest ones."""


# A match of so many tokens is as certain as a longer one.
_LONG = 32


def confidence_of(match: int) -> int:
    """How certain a draft is after a match of so many tokens, the drafts before it included: 1 from
    2 tokens on, 2 from 4, 3 from 8, up to 5 from 32. After a prediction it is `MOST_CONFIDENT`."""
    return max(0, min(match, _LONG).bit_length() - 1)


class _Sequence:
    """What is known of one sequence."""

    def __init__(self, new: NewSequence) -> None:
        self._index = _texts.RepeatIndex(MAX_TOKENS)
        self._prediction = np.array(new.prediction, np.int32)
        self._prompt_len = new.prompt_len
        self._read = 0
        self._follows = len(new.prediction) > 0  # the output is the prediction's beginning so far
        if self._follows:
            self._index.extend(self._prediction)
            self._index.separate()

    def read(self, tokens: Int32) -> None:
        """Index the tokens that are new."""
        if len(tokens) > self._read:
            self._index.extend(tokens[self._read :])
            self._read = len(tokens)

    def propose(self, tokens: Int32, most: int, least: int) -> Proposal:
        self.read(tokens)
        if self._follows and (expected := self._rest_of_prediction(tokens)):
            drafts = tuple(expected[:most])
            return Proposal(drafts, confidence=(MOST_CONFIDENT,) * len(drafts))
        match = self._index.match
        if confidence_of(match) < least or match < MIN_MATCH:
            return Proposal((), confidence_of(match + 1) < least or match + 1 < MIN_MATCH)
        drafts = tuple(self._index.propose(min(most, match)))
        certain = tuple(confidence_of(match + index) for index in range(len(drafts)))
        return Proposal(drafts, confidence=certain)

    def _rest_of_prediction(self, tokens: Int32) -> list[int]:
        output = tokens[self._prompt_len :]
        expected = self._prediction
        self._follows = len(output) < len(expected) and np.array_equal(
            output, expected[: len(output)]
        )
        return expected[len(output) :].tolist() if self._follows else []


class LookupDrafter:
    """See the module and `drafter.Drafter`."""

    reads_hidden = False

    def __init__(self) -> None:
        self._sequences: dict[int, _Sequence] = {}

    def add(self, new: NewSequence, cached: int) -> None:
        """See Drafter."""
        self._sequences[new.seq_id] = _Sequence(new)

    def read(self, seq_id: int, tokens: Int32) -> None:
        """See Drafter."""
        self._sequences[seq_id].read(tokens)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """See Drafter."""
        of = self._sequences
        return [of[one.seq_id].propose(one.tokens, one.most, one.least) for one in wanted]

    def forget(self, seq_id: int) -> None:
        """See Drafter."""
        self._sequences.pop(seq_id, None)
