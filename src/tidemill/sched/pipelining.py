"""Plans for an executor that computes two steps at the same time (`Limits.pipelined`).

It has begun the second before the first one's tokens are known, so the second computes what does
not depend on them: other streams, and more of a prompt.
"""

from __future__ import annotations

from tidemill.sched.policy import is_decoding
from tidemill.sched.sequence import Sequence
from tidemill.sched.state import State


def apart(state: State, due: list[Sequence]) -> list[Sequence]:
    """Of the streams that are due, those of the next step: half of all, and none that waits for a
    token in flight. A stream with nothing besides it takes every step."""
    streams = sum(map(is_decoding, state.running))
    if streams < 2 and not independent(state):
        return due
    ready = sorted((seq for seq in due if not seq.pending), key=lambda s: (s.last_row, s.order))
    return ready[: (streams + 1) // 2]


def independent(state: State) -> bool:
    """Whether there is something to compute that waits for no token in flight."""
    if any(len(line.queue) for line in state.lines):
        return True
    return any(seq.remaining > 0 and not seq.pending for seq in state.running)
