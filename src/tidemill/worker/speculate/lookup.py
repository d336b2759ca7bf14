"""Prompt lookup: what followed earlier occurrences of the latest tokens, in the prompt, in the
output, in what the client expects of it (`prediction`), and where that is wanted in recent answers
of the same owner.

The drafts are the most frequent continuation of the longest match (Saxena 2023, prompt lookup
decoding; Oliaro et al. 2024, suffix decoding), as many as the match has tokens: the longer it is,
the likelier it goes on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
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


_MOST_OWNERS = 256


class RecentAnswers:
    """The latest answers by owner; of owners the latest.

    Args:
        most: tokens of an owner that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: OrderedDict[str, deque[Int32]] = OrderedDict()

    def of(self, owner: str) -> tuple[Int32, ...]:
        """An owner's answers, the oldest first: int32 each."""
        return tuple(self._of.get(owner, ()))

    def add(self, owner: str, answer: Int32) -> None:
        """An answer has ended; of one that is too long the end is kept."""
        kept = self._of.setdefault(owner, deque())
        kept.append(answer[-self._most :])
        while sum(map(len, kept)) > self._most:
            kept.popleft()
        self._of.move_to_end(owner)
        if len(self._of) > _MOST_OWNERS:
            self._of.popitem(last=False)


class _Sequence:
    """What is known of one sequence.

    Attributes:
        owner: `NewSequence.answers_of`.
    """

    def __init__(self, new: NewSequence, answers: tuple[Int32, ...]) -> None:
        self.owner = new.answers_of
        self._answers = answers
        self._output: list[Int32] = []
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
        for answer in self._answers:
            self._index.extend(answer)
            self._index.separate()
        self._answers = ()
        if len(tokens) > self._read:
            self._index.extend(tokens[self._read :])
            if self.owner and len(tokens) > self._prompt_len:
                self._output.append(tokens[max(self._read, self._prompt_len) :].copy())
            self._read = len(tokens)

    @property
    def answer(self) -> Int32:
        """What was read of the output, of a sequence with an owner."""
        return np.concatenate(self._output) if self._output else np.zeros(0, np.int32)

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
    """See the module and `drafter.Drafter`.

    Args:
        answers: tokens of an owner's recent answers that are read beside a sequence; 0: none.
    """

    reads_hidden = False

    def __init__(self, answers: int = 0) -> None:
        self._sequences: dict[int, _Sequence] = {}
        self._recent = RecentAnswers(answers)

    def add(self, new: NewSequence, cached: int) -> None:
        """See Drafter."""
        self._sequences[new.seq_id] = _Sequence(new, self._recent.of(new.answers_of))

    def read(self, seq_id: int, tokens: Int32) -> None:
        """See Drafter."""
        self._sequences[seq_id].read(tokens)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """See Drafter."""
        of = self._sequences
        return [of[one.seq_id].propose(one.tokens, one.most, one.least) for one in wanted]

    def forget(self, seq_id: int) -> None:
        """See Drafter."""
        ended = self._sequences.pop(seq_id, None)
        if ended is not None and ended.owner and len(answer := ended.answer):
            self._recent.add(ended.owner, answer)
