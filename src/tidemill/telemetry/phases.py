"""Where a request's time went: consecutive phases that make up all of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemill.contract.history import ChoiceHistory
from tidemill.contract.request import RequestTimings
from tidemill.telemetry.facts import Life, StreamFacts
from tidemill.telemetry.trace import Trace
from tidemill.telemetry.ways import Way, answering

PHASES = {
    "read": "until its body was read and checked",
    "model": "until its model was loaded, or woken",
    "prepare": "template and tokenizer made a prompt of it",
    "quota": "its limits were reserved",
    "admission": "admission control decided, and it was submitted",
    "dispatch": "on its way to the engine",
    "lost": "work of an engine that ended before the first token",
    "grammar": "what its output must obey was compiled",
    "adapter": "its adapters were read",
    "queue": "it waited for a place, or for memory",
    "prefill": "its prompt was computed, until the first token",
    "decode": "tokens were generated",
    "preempted": "it was preempted, until it was admitted again",
    "recovery": "its engine was replaced, and it was replayed until its next token",
    "route": "a target was chosen, or one was waited for",
    "failed": "targets that it was given to did not begin to answer",
    "target": "until the first part of a target's answer",
    "relay": "the rest of the target's answer was passed on",
    "deliver": "the rest of its answer was written",
    "work": "whatever else answered it",
}
"""Names of phases, in their usual order, and what they are."""


class Phase(NamedTuple):
    """A part of a request's time; seconds, from its arrival."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.start


class Milestones(NamedTuple):
    """Of a request, in seconds of `base.clock.monotonic`; 0: it did not happen (yet).

    Attributes:
        arrival: it came.
        begun: its body was read and checked.
        leased: its model was there.
        ended: the last byte of its answer was about to be sent.
    """

    arrival: float
    begun: float = 0.0
    leased: float = 0.0
    ended: float = 0.0


class _Marks:
    """Consecutive phases: each ends where the next one begins, whatever the clocks say."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._at, self._end = begin, begin, end
        self.phases: list[Phase] = []

    def until(self, name: str, at: float) -> None:
        """A phase ends at `at`; 0: it did not happen."""
        if at:
            at = min(max(at, self._at), self._end)
            self.phases.append(Phase(name, self._at - self._begin, at - self._begin))
            self._at = at

    def split(self, name: str, at: float, pauses: Iterable[tuple[str, float, float]]) -> None:
        """A phase that ends at `at`, interrupted by others: their names, begins and ends."""
        if not at:
            return
        for pause, begin, end in sorted(pauses, key=lambda pause: pause[1]):
            if end > self._at and begin < at:
                self.until(name, begin)
                self.until(pause, min(end, at))
        self.until(name, at)


def phases_of(
    milestones: Milestones, trace: Trace | None, now: float, ways: Sequence[Way] = ()
) -> list[Phase]:
    """The phases of a request that has ended, or of one that runs up to `now`. Their seconds sum to
    all of its time.

    Args:
        milestones: of the request.
        trace: of what answered it; None: nothing did.
        now: of the same clock.
        ways: of a gateway: the targets that it was given to.
    """
    end = milestones.ended or now
    marks = _Marks(milestones.arrival, end)
    marks.until("read", milestones.begun)
    marks.until("model", milestones.leased)
    if trace is not None:
        last = _of_answer(marks, trace)
    elif ways:
        last = _of_ways(marks, ways)
    elif not milestones.begun:
        last = "read"
    else:
        last = "work" if milestones.leased else "model"
    marks.until(last, end)
    return [phase for phase in _merged(marks.phases) if phase.seconds > 0.0]


def _of_ways(marks: _Marks, ways: Sequence[Way]) -> str:
    """Marks where a gateway's request was; the name of what comes after it."""
    marks.until("route", ways[0].given)
    found = answering(ways)
    if found is None:
        return "failed" if any(way.ended for way in ways) else "target"
    if any(way.ended and not way.first for way in ways if way.given < found.given):
        marks.until("failed", found.given)
    marks.until("target", found.first)
    begun = sorted((way for way in ways if way.first), key=lambda way: way.first)
    for before, after in itertools.pairwise(begun):
        marks.until("relay", before.ended)
        marks.until("recovery", after.first)
    return "relay"


def _of_answer(marks: _Marks, trace: Trace) -> str:
    """Marks what is known; the name of what comes after it."""
    marks.until("prepare", trace.began)
    marks.until("quota", trace.reserved)
    marks.until("admission", trace.submitted or trace.admitted)
    if not trace.began:
        return "prepare"
    if not trace.reserved:
        return "quota"
    if not trace.submitted:
        return "admission"
    if not trace.streams:
        return "work"
    return _of_engine(marks, trace.streams)


def _of_engine(marks: _Marks, streams: Sequence[StreamFacts]) -> str:
    timings = together(streams)
    histories = histories_of(streams)
    first = min((c.first for s in streams for c in s.choices.values() if c.first), default=0.0)
    scheduled = min((s.scheduled for s in streams if s.scheduled), default=0.0)
    lives = streams[0].lives if len(streams) == 1 else []
    if timings is not None and len(lives) < 2:  # of a replay the engine's own times are later ones
        scheduled = timings.first_scheduled or scheduled
        first = timings.first_token or first
    if len(lives) > 1 and not lives[0].first:
        marks.until("lost", lives[0].lost)
        marks.until("recovery", next((life.sent for life in reversed(lives)), 0.0))
    if timings is not None and len(lives) < 2:
        marks.until("dispatch", timings.received)
    for name, at in sorted(_awaited(histories), key=lambda one: one[1]):
        marks.until(name, at)
    marks.until("queue", scheduled)
    pauses = [*_recoveries(lives), *_preempted(histories)]
    if not first and timings is not None:  # nothing is generated
        marks.split("prefill" if scheduled else "queue", timings.finished, pauses)
        return "deliver"
    marks.split("prefill", first, pauses)
    if timings is None:
        return "decode" if first else "prefill" if scheduled else "queue"
    marks.split("decode", timings.finished, pauses)
    return "deliver"


def _awaited(histories: Sequence[ChoiceHistory]) -> list[tuple[str, float]]:
    """What a request waited for before it was queued, and when it was there; the first of each."""
    grammars = [history.ready for history in histories if history.ready]
    adapters = [history.adapters_ready for history in histories if history.adapters_ready]
    named = (("grammar", grammars), ("adapter", adapters))
    return [(name, min(times)) for name, times in named if times]


def together(streams: Sequence[StreamFacts]) -> RequestTimings | None:
    """The engine's times of all choices; None before all have ended."""
    found: RequestTimings | None = None
    for stream in streams:
        if not stream.choices:
            return None
        for choice in stream.choices.values():
            if choice.timings is None:
                return None
            found = choice.timings if found is None else found.together(choice.timings)
    return found


def histories_of(streams: Sequence[StreamFacts]) -> list[ChoiceHistory]:
    """Of all choices that have ended."""
    choices = (choice for stream in streams for choice in stream.choices.values())
    return [choice.history for choice in choices if choice.history is not None]


def _recoveries(lives: Sequence[Life]) -> list[tuple[str, float, float]]:
    """From the end of an engine to the first output of the next one that had any. Before the first
    token of all, what comes after a recovery is the queue and the prompt."""
    found = []
    for i, life in enumerate(lives):
        again = next((later.first for later in lives[i + 1 :] if later.first), 0.0)
        if life.lost and again and any(earlier.first for earlier in lives[: i + 1]):
            found.append(("recovery", life.lost, again))
    return found


def _preempted(histories: Sequence[ChoiceHistory]) -> list[tuple[str, float, float]]:
    """The pauses of a single choice; of several, others go on meanwhile."""
    if len(histories) != 1:
        return []
    [history] = histories
    found = []
    for preemption in history.preemptions:
        again = next((c.at for c in history.chunks if c.at > preemption.at), 0.0)
        if again:
            found.append(("preempted", preemption.at, again))
    return found


def _merged(phases: Sequence[Phase]) -> list[Phase]:
    """Neighbours of the same name as one."""
    found: list[Phase] = []
    for phase in phases:
        if found and found[-1].name == phase.name:
            found[-1] = Phase(phase.name, found[-1].start, phase.end)
        else:
            found.append(phase)
    return found
