"""Decoding ahead: the times of many steps in which an engine's streams only get their next tokens.

They are computed at once, without the scheduler; what they do to it is applied when a stream ends
or something comes in between. Every number is what step by step it would be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemill.engine.core import LAUNCH_FRACTION
from tidemill.sched.cost import StepCost
from tidemill.sched.decode_run import DecodeRun
from tidemill.simulate.costs import HostSeconds, StepSeconds, Work

VOCAB = 1 << 30

COMMIT_SHARE = 0.5
"""Of the loop's seconds between steps, what passes before outputs leave."""

# Steps that are computed ahead: what comes in between makes the rest worthless.
_AT_ONCE = 24


def token_at(seq_id: int, position: int) -> int:
    """What a row samples. Of two choices of one request, each gets tokens of its own: nothing but
    itself has them."""
    return (seq_id * 65537 + position) % VOCAB


class Landed(NamedTuple):
    """A step that has ended: its number in the run, when, and when its outputs leave."""

    number: int
    at: float
    leaves: float


class Ahead:
    """The steps of a run, as far as they have been computed.

    Args:
        run: the scheduler's.
        begins, ends, predicted: of the step in flight.
        now: when it began to be awaited.
        cost: see the attribute.
        step, host: seconds.
        draw: factors of noise.

    Attributes:
        run: the scheduler's.
        begins, ends: of each step, the first being the one in flight at the start; one more than
            the run commits.
        launches: of each step but the first, when it was launched.
        ahead: of each step but the last, whether the next one was launched before its end.
        drawn, seconds: of each step but the first: factors of noise, and seconds.
        predicted: of each step.
        landed: those that the run commits.
        cost: a copy of the scheduler's, which has learned from all that have landed.
    """

    def __init__(
        self,
        run: DecodeRun,
        begins: float,
        ends: float,
        predicted: float,
        *,
        now: float,
        cost: StepCost,
        step: StepSeconds,
        host: HostSeconds,
        draw: Callable[[], float],
    ) -> None:
        self.run = run
        self._now = now
        self.cost = cost
        self._step = step
        self._host = host
        self._draw = draw
        self.begins, self.ends = [begins], [ends]
        self.launches: list[float] = []
        self.ahead: list[bool] = []
        self.drawn: list[float] = []
        self.seconds: list[float] = []
        self.predicted = [predicted]
        self.landed: list[Landed] = []

    def compute(self) -> bool:
        """Compute some more steps; False if there are none."""
        cost, host, run, rows = self.cost, self._host, self.run, len(self.run.rows)
        loop = host.step + host.row * rows
        begins, ends, predicted, now = self.begins[-1], self.ends[-1], self.predicted[-1], self._now
        done = len(self.landed)
        load = run.load(done)
        for number in range(done, min(done + _AT_ONCE, run.steps)):
            due = max(now, begins + LAUNCH_FRACTION * predicted - 2 * loop)
            ahead = due < ends
            following = run.load(number + 1)
            if ahead:
                predicted = cost.predict(following)
                cost.observe(load, ends - begins)
                ready = due
            else:
                cost.observe(load, ends - begins)
                predicted = cost.predict(following)
                ready = ends
            work = Work(
                following.tokens, following.pairs, following.reach, rows, rows,
                following.adapter_bytes,
            )  # fmt: skip
            begins = max(ready + host.step + host.row * rows, ends)
            factor = self._draw()
            seconds = self._step.of(work) * factor
            leaves = ends + COMMIT_SHARE * loop if ahead else begins
            self.landed.append(Landed(number, ends, leaves))
            now = ends
            ends = begins + seconds
            load = following
            self.ahead.append(ahead)
            self.launches.append(ready)
            self.drawn.append(factor)
            self.seconds.append(seconds)
            self.begins.append(begins)
            self.ends.append(ends)
            self.predicted.append(predicted)
        self._now = now
        return len(self.landed) > done

    def work(self, step: int) -> Work:
        """Of one of the steps."""
        load, rows = self.run.load(step), len(self.run.rows)
        return Work(load.tokens, load.pairs, load.reach, rows, rows, load.adapter_bytes)
