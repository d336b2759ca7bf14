"""Beam search: which continuations of its beams a search keeps, and when it ends.

The same as transformers' `generate(num_beams=...)` (5.23), for one prompt. In each round every live
beam offers its candidates. Of the best ones over all beams (by score; ties: the better beam, then
the lower token id), the first `width` that go on are the next live beams. Those that end become
hypotheses if they are among the first `width`. A hypothesis' score is the sum of its candidates'
scores divided by its generated tokens to the power of `length_penalty`, and the best `width`
hypotheses are kept.

The search ends

- when every continuation ends (``max_tokens``), or none is left;
- with `early_stopping` True, as soon as there are `width` hypotheses;
- when there are `width` and the best live beam cannot become better than the worst of them. What it
  may become is estimated with its present length, or, with `early_stopping` ``never`` and a
  positive length penalty, with the longest possible length.

Two details differ from transformers: a beam without an allowed continuation ends without a trace,
where transformers continues it with a banned token (so there may be fewer than `width` hypotheses),
and sums are made in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Offer(NamedTuple):
    """A candidate of a live beam.

    Attributes:
        beam: the beam's index.
        rank: the candidate's among the beam's, best first.
        token: its id.
        total: sum of scores, this one included.
    """

    beam: int
    rank: int
    token: int
    total: float


class Hypothesis(NamedTuple):
    """A continuation that has ended; `round` counts the rounds from 0."""

    score: float
    round: int
    offer: Offer


class Round(NamedTuple):
    """What a round decides.

    Attributes:
        live: the next live beams, best first.
        ended: new hypotheses, best first; some of `BeamSearch.hypotheses` may have been dropped.
        done: the search has ended.
    """

    live: list[Offer]
    ended: list[Hypothesis]
    done: bool


@dataclass(slots=True)
class BeamSearch:
    """The scores of one search.

    Attributes:
        width: live beams, and hypotheses kept.
        length_penalty, early_stopping: see the module.
        longest: generated tokens of the longest possible hypothesis.
        scores: sums of the live beams, best first.
        hypotheses: those kept, best first.
        rounds: finished rounds, which is the number of generated tokens of a live beam.
    """

    width: int
    length_penalty: float
    early_stopping: bool | str
    longest: int
    scores: list[float] = field(default_factory=lambda: [0.0])
    hypotheses: list[Hypothesis] = field(default_factory=list)
    rounds: int = 0

    def next(
        self,
        candidates: Sequence[Sequence[tuple[int, float]]],
        ends: Callable[[Offer], bool],
    ) -> Round:
        """Decide a round.

        Args:
            candidates: (token id, score) of each live beam, best first. As many as `width` and
                those that may end are enough.
            ends: whether a candidate ends its beam. Called for as few as possible, best first.
        """
        offers = [
            Offer(beam, rank, token, total + score)
            for beam, (total, found) in enumerate(zip(self.scores, candidates, strict=True))
            for rank, (token, score) in enumerate(found)
        ]
        offers.sort(key=lambda o: (-o.total, o.beam, o.token))
        self.rounds += 1
        live: list[Offer] = []
        ended: list[Hypothesis] = []
        for place, offer in enumerate(offers):
            if len(live) == self.width and place >= self.width:
                break
            if not ends(offer):
                if len(live) < self.width:
                    live.append(offer)
            elif place < self.width:
                score = offer.total / self._divisor(self.rounds)
                ended.append(Hypothesis(score, self.rounds - 1, offer))
        self.hypotheses = sorted([*self.hypotheses, *ended], key=lambda h: -h.score)[: self.width]
        self.scores = [offer.total for offer in live]
        return Round(live, ended, self._done())

    def _divisor(self, length: int) -> float:
        return math.pow(length, self.length_penalty)

    def _done(self) -> bool:
        if not self.scores:
            return True
        if len(self.hypotheses) < self.width:
            return False
        if self.early_stopping is True:
            return True
        optimistic = self.early_stopping == "never" and self.length_penalty > 0.0
        best = self.scores[0] / self._divisor(self.longest if optimistic else self.rounds)
        return best <= self.hypotheses[-1].score
