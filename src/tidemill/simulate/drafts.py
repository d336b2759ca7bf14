"""Drafts of a simulated engine: as likely to come true as it is told, verified as by a real one.

The scheduler's own controller decides how many are verified, from what comes true and what steps
take.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from tidemill.contract.plan import MOST_CONFIDENT, Drafting, Row, RowResult, StepPlan
from tidemill.simulate.decode import token_at

_WRONG = 1 << 29  # added to a token, modulo twice that: none that will come


class Speculation(NamedTuple):
    """What drafts.

    Attributes:
        acceptance: how likely a draft comes true where those before it have.
        seconds: that the drafter takes for each token of the longest proposal, after a step.
    """

    acceptance: float
    seconds: float = 0.0


class Drafts:
    """Proposes and verifies.

    Args:
        speculation: how well.
        drafter: its name.
        seed: of what comes true.
    """

    def __init__(self, speculation: Speculation, drafter: str, seed: str) -> None:
        self._acceptance = speculation.acceptance
        # As certain as it is right.
        self._confidence = min(MOST_CONFIDENT, int(self._acceptance * (MOST_CONFIDENT + 1)))
        self._seconds = speculation.seconds
        self._drafter = drafter
        self._draw: Callable[[], float] = random.Random(f"drafts {seed}").random

    def drafting(self, plan: StepPlan) -> tuple[Drafting, ...]:
        """What the drafter does after a step."""
        longest = [wanted.most for row in plan.rows for wanted in row.drafts_wanted]
        if not longest:
            return ()
        most = max(longest)
        return (Drafting(self._drafter, self._seconds * most, len(longest), most),)

    def result(self, row: Row) -> RowResult:
        """Of a row that samples: drafts that came true, one token more, and new drafts."""
        came_true = 0
        for place, draft in enumerate(row.draft_token_ids):
            if draft != token_at(row.seq_id, row.start + place):
                break
            came_true += 1
        tokens = tuple(token_at(row.seq_id, row.start + i) for i in range(came_true + 1))
        if not row.drafts_wanted:
            return RowResult(seq_id=row.seq_id, token_ids=tokens)
        first = row.start + row.count + came_true  # position of the last token
        proposed = self._proposed(row.seq_id, first, row.drafts_wanted[0].most)
        return RowResult(
            seq_id=row.seq_id,
            token_ids=tokens,
            draft_token_ids=proposed,
            drafter=self._drafter,
            confidence=(self._confidence,) * len(proposed),
        )

    def _proposed(self, seq_id: int, first: int, most: int) -> tuple[int, ...]:
        found = []
        right = True
        for position in range(first, first + most):
            right = right and self._draw() < self._acceptance
            token = token_at(seq_id, position)
            found.append(token if right else (token + _WRONG) % (2 * _WRONG))
        return tuple(found)
