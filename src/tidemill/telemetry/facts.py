"""When the outputs of one request came, for its explanation.

It is told of every output in the API process, so that the engine's steps do nothing for it: one
reading of the clock serves all outputs of a step, and of an output without a slow gap a few numbers
are kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.contract.history import ChoiceHistory
from tidemill.contract.request import ChoiceOutput, RequestTimings
from tidemill.contract.wire import EngineStats

MAX_GAPS = 4096
"""Gaps that are kept of one choice; of a longer output every second one, then every fourth, ..."""

MAX_SLOWEST = 5

MAX_LIVES = 16


class SlowGap(NamedTuple):
    """A pause between two outputs of a choice.

    Attributes:
        seconds, end: how long it was, and when the output after it came.
        tokens: of the choice before it.
        steps: that the engine committed in it.
        step_tokens, step_rows, step_seconds: of the last of them.
    """

    seconds: float
    end: float
    tokens: int
    steps: int
    step_tokens: int
    step_rows: int
    step_seconds: float


class GapSummary(NamedTuple):
    """Percentiles of the gaps between a choice's outputs, in seconds.

    Attributes:
        gaps: how many.
        p50, p90, p99, longest: see above.
    """

    gaps: int
    p50: float
    p90: float
    p99: float
    longest: float


@dataclass(slots=True)
class Life:
    """The request in one engine process.

    Attributes:
        sent: to it.
        lost: it ended before the request did; 0: it did not.
        cause: of that: ``crash`` or ``stall``.
        first: its first output came; 0: none did.
    """

    sent: float
    lost: float = 0.0
    cause: str = ""
    first: float = 0.0


class ChoiceFacts:
    """When the outputs of one choice came.

    Attributes:
        first, last: its first and its latest tokens came.
        tokens: so far.
        drafted, accepted: drafts that were verified, and those that became tokens.
        slowest: the longest gaps, unordered.
        samples: seconds of gaps, evenly spread over all; fewer than MAX_GAPS.
        history, timings: of the engine that ended it.
        finish: why it ended; empty: it has not.
    """

    __slots__ = (
        "_floor",
        "_seen",
        "_steps",
        "_stride",
        "_summary",
        "accepted",
        "drafted",
        "finish",
        "first",
        "history",
        "last",
        "samples",
        "slowest",
        "timings",
        "tokens",
    )

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.tokens = self.drafted = self.accepted = 0
        self.slowest: list[SlowGap] = []
        self.history: ChoiceHistory | None = None
        self.timings: RequestTimings | None = None
        self.finish = ""
        self.samples = array("f")
        self._floor = 0.0
        self._steps = 0
        self._stride = 1
        self._seen = 0
        self._summary: GapSummary | None = None

    def output(self, output: ChoiceOutput, now: float, stats: EngineStats) -> None:
        """An output came."""
        if self.finish:  # of a replay
            return
        if output.token_ids:
            if self.first:
                gap = now - self.last
                self._seen += 1
                if self._stride == 1 or self._seen % self._stride == 0:
                    self.samples.append(gap)
                    if len(self.samples) >= MAX_GAPS:
                        self.samples = self.samples[1::2]
                        self._stride *= 2
                if gap > self._floor:
                    self._slow(gap, now, stats)
            else:
                self.first = now
            self.last, self._steps = now, stats.steps
            self.tokens += len(output.token_ids)
        if output.drafted:
            self.drafted += output.drafted
            self.accepted += output.drafts_accepted
        if output.finish_reason is not None:
            self.finish = output.finish_reason.value
            self.history, self.timings = output.history, output.timings
            self._summary = self.gaps()
            self.samples = array("f")

    def _slow(self, gap: float, now: float, stats: EngineStats) -> None:
        self.slowest.append(
            SlowGap(
                gap,
                now,
                self.tokens,
                # A new engine counts from 0.
                max(0, stats.steps - self._steps),
                stats.last_step_tokens,
                stats.last_step_rows,
                stats.last_step_seconds,
            )
        )
        if len(self.slowest) > MAX_SLOWEST:
            self.slowest.remove(min(self.slowest))
            self._floor = min(self.slowest).seconds

    def gaps(self) -> GapSummary | None:
        """Of the gaps so far; None before there are any."""
        if self._summary is not None or not self.samples:
            return self._summary
        ordered = sorted(self.samples)
        # Which may be none of those that are kept.
        longest = max((gap.seconds for gap in self.slowest), default=0.0)
        p50, p90, p99 = (_quantile(ordered, q) for q in (0.5, 0.9, 0.99))
        return GapSummary(self._seen, p50, p90, p99, longest)


class StreamFacts:
    """What is known of one request's stream.

    Attributes:
        lives: the engines that it was sent to, the first ones.
        choices: by index.
        scheduled: its prompt was begun to be computed; 0: not yet.
        cached: prompt tokens found in the prefix cache; None: not known yet.
    """

    __slots__ = ("cached", "choices", "lives", "scheduled")

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.choices: dict[int, ChoiceFacts] = {}
        self.scheduled = 0.0
        self.cached: int | None = None

    def sent(self, now: float) -> None:
        """It is sent to an engine."""
        if len(self.lives) < MAX_LIVES:
            self.lives.append(Life(now))

    def lost(self, now: float, cause: str) -> None:
        """The engine that it was sent to has ended."""
        if not self.lives[-1].lost:
            self.lives[-1].lost, self.lives[-1].cause = now, cause

    def output(self, output: ChoiceOutput, now: float, stats: EngineStats) -> None:
        """An output came."""
        choice = self.choices.get(output.choice)
        if choice is None:
            choice = self.choices[output.choice] = ChoiceFacts()
        if not choice.first or len(self.lives) > 1:
            self._begun(output, now)
        choice.output(output, now, stats)

    def _begun(self, output: ChoiceOutput, now: float) -> None:
        life = self.lives[-1]
        if output.token_ids and not life.first:
            life.first = now
        if output.scheduled and not self.scheduled:
            self.scheduled = output.scheduled
        if self.cached is None:
            self.cached = output.cached_tokens


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
