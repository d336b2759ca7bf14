"""Figures of speculation: acceptance by drafter and position, and the time saved."""

from __future__ import annotations

from itertools import accumulate

from tidemill.contract.plan import Drafting
from tidemill.contract.wire import DrafterFigures, SpeculationFigures


class _OfDrafter:
    """Of a drafter: its time, and how many proposals had so many drafts verified and accepted."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.verified: list[int] = []
        self.accepted: list[int] = []

    def tell(self, name: str) -> DrafterFigures:
        return DrafterFigures(name, self.seconds, _at(self.verified), _at(self.accepted))


def _at(proposals: list[int]) -> tuple[int, ...]:
    """By position: how many proposals had more drafts than come before it."""
    behind = accumulate(reversed(proposals[1:]))
    return tuple(behind)[::-1]


class Figures:
    """Counters since the start of the engine."""

    def __init__(self) -> None:
        self._drafters: dict[str, _OfDrafter] = {}
        self._plain = self._spent = self._held_out = self._expected = 0.0
        self._steps = self._tokens = 0
        self._told: SpeculationFigures | None = None

    def count(self, drafter: str, verified: int, accepted: int) -> None:
        """Drafts of a row were verified."""
        of = self._drafters.setdefault(drafter, _OfDrafter())
        while len(of.verified) <= verified:
            of.verified.append(0)
            of.accepted.append(0)
        of.verified[verified] += 1
        of.accepted[accepted] += 1
        self._told = None

    def count_time(self, done: Drafting) -> None:
        """A drafter was called."""
        self._drafters.setdefault(done.drafter, _OfDrafter()).seconds += done.seconds
        self._told = None

    def count_step(self, rows: int, tokens: int, plain: float, seconds: float) -> None:
        """A step with drafts is done.

        Args:
            rows: its streams.
            tokens: what they got.
            plain: predicted seconds of a step without drafts.
            seconds: what it took, drafting included.
        """
        self._steps += 1
        self._tokens += tokens
        if rows and plain > 0.0:
            self._plain += tokens / rows * plain
            self._spent += seconds
        self._told = None

    def count_held_out(self, expected: float, seconds: float) -> None:
        """A step that was to have drafts had none, to be measured: predicted, measured seconds."""
        self._expected += expected
        self._held_out += seconds
        self._told = None

    def tell(self) -> SpeculationFigures:
        """All of them."""
        if self._told is None:
            self._told = SpeculationFigures(
                steps=self._steps,
                tokens=self._tokens,
                plain_seconds=self._plain,
                spent_seconds=self._spent,
                held_out_predicted_seconds=self._expected,
                held_out_seconds=self._held_out,
                drafters=tuple(of.tell(name) for name, of in sorted(self._drafters.items())),
            )
        return self._told
