"""One pool of engines: what is wanted and what exists become a few actions. Pure.

Engines of another digest than the wanted one are replaced one after the other: a new one starts
beside them, and when it is ready an old one drains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.cluster.scaling import Autoscaler, Decision, EngineFacts, Held, Objectives, State

FAILED_EXITS = 3
"""Ends of an engine that was never ready, after which it counts as failed."""

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds without a start after an engine that failed: doubled with each further one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine as it was found.

    Attributes:
        facts: as the autoscaler takes them.
        digest: of what it was started with.
        pending: there is no room for it anywhere yet.
        since: when it was first seen.
        exits, reason: how often its process ended, and why.
        silent: seconds for which it has not answered although it is ready.
    """

    facts: EngineFacts
    digest: str
    pending: bool = False
    since: float = 0.0
    exits: int = 0
    reason: str = ""
    silent: float = 0.0

    @property
    def name(self) -> str:
        """Its name."""
        return self.facts.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What is to be done with a pool.

    Attributes:
        start: engines that are to be started.
        drain: to be left by their requests, and stopped then.
        restore: that drain, and stay after all.
        stop: at once: they have no requests, or are lost.
        decision: of the autoscaler.
    """

    start: int
    drain: tuple[str, ...]
    restore: tuple[str, ...]
    stop: tuple[str, ...]
    decision: Decision


class Pool:
    """See the module docstring.

    Args:
        objectives: of its autoscaler.
        digest: that its engines should have.
        start_seconds: until when one that was placed is ready.
        silent_seconds: that a ready one may not answer.

    Attributes:
        problem: why engines do not start; empty: they do.
    """

    def __init__(
        self,
        objectives: Objectives,
        digest: str,
        *,
        start_seconds: float = 600.0,
        silent_seconds: float = 30.0,
    ) -> None:
        self._scaler = Autoscaler(objectives)
        self._digest = digest
        self._start_seconds = start_seconds
        self._silent_seconds = silent_seconds
        self._failures = 0
        self._next_start = 0.0
        self._rolling: int | None = None  # engines that there are without those that replace others
        self.problem = ""

    def plan(self, now: float, engines: Sequence[Engine], held: Held) -> Actions:
        """What is to be done now."""
        lost = [one for one in engines if self._is_lost(now, one)]
        for one in lost:
            if one.facts.state is State.STARTING:
                self._note_failure(now, one)
        left = [one for one in engines if one not in lost]
        if any(one.facts.state is State.READY and one.digest == self._digest for one in left):
            self._failures, self.problem = 0, ""
        draining = [one for one in left if one.facts.state is State.DRAINING]
        staying = [one for one in left if one.facts.state is not State.DRAINING]
        old = [one for one in staying if one.digest != self._digest]
        if not old:
            self._rolling = None
        elif self._rolling is None:
            self._rolling = len(staying)
        seen = sorted(staying, key=self._rank)[: self._rolling]
        reusable = [one for one in draining if one.digest == self._digest]
        facts = [one.facts for one in (*seen, *reusable)]
        decision = self._scaler.decide(now, facts, held)
        drain, start = list(decision.drain), decision.start
        if old:
            self._rolling = decision.desired
            leaving = len(draining) > len(reusable)
            drain, start = self._replace(decision, staying, old, leaving=leaving)
        idle = {one.name for one in staying if one.facts.state is State.STARTING}
        return Actions(
            start=start if now >= self._next_start else 0,
            drain=tuple(name for name in drain if name not in idle),
            restore=decision.restore,
            stop=(*(one.name for one in lost), *(name for name in drain if name in idle)),
            decision=decision,
        )

    def _replace(
        self,
        decision: Decision,
        staying: Sequence[Engine],
        old: Sequence[Engine],
        *,
        leaving: bool,
    ) -> tuple[list[str], int]:
        """Engines that go, old ones first, and new ones that start: one at a time beside what the
        load asks for, and none while an old one is `leaving`, whose place it may need."""
        new = [one for one in staying if one not in old]
        ready = [one for one in new if one.facts.state is State.READY]
        surplus = max(0, len(ready) + len(old) - decision.desired)
        going = sorted(old, key=lambda one: (one.facts.state is State.READY, one.facts.running))
        names = [one.name for one in going[:surplus]]
        names += [one.name for one in ready[: max(0, surplus - len(old))]]
        coming = len(new) - len(ready)
        wanted = max(0, decision.desired - len(ready))
        replacing = 0 if names or leaving else 1
        room = max(replacing, decision.start) - coming
        return names, max(0, min(wanted, room))

    def _rank(self, engine: Engine) -> int:
        """Order in which engines count as capacity while old ones are replaced: a new one that is
        ready is there instead of an old one, and one that starts is none yet."""
        if engine.facts.state is not State.READY:
            return 2
        return 0 if engine.digest == self._digest else 1

    def _is_lost(self, now: float, engine: Engine) -> bool:
        if engine.facts.state is State.STARTING:
            late = not engine.pending and now - engine.since > self._start_seconds
            return late or engine.exits >= FAILED_EXITS
        return engine.silent > self._silent_seconds

    def _note_failure(self, now: float, engine: Engine) -> None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
        self._failures += 1
        self._next_start = now + pause
        why = engine.reason or f"not ready within {self._start_seconds:g} s"
        self.problem = f"{engine.name} failed: {why}; the next start is in {pause:g} s"
