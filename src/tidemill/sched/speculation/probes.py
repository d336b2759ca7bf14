"""Probes: which stream a drafter that computes is asked for, where it would not be asked."""

from __future__ import annotations

from tidemill.contract.speculation import LOOKUP
from tidemill.sched.sequence import Sequence

PROBE_SHARE = 0.01
"""Share of the time that drafters may compute for streams that would not ask them."""


class Probes:
    """One stream at a time, the same as long as it runs: a model reads what it has not read of a
    stream before it drafts, which is least where it drafted last.

    Attributes:
        seq_id: the stream that the present step probes for; None: it does not.
    """

    def __init__(self) -> None:
        self.seq_id: int | None = None
        self._last = -1
        self._passed = self._cost = 0.0

    def choose(self, streams: list[Sequence]) -> None:
        """Choose one of these streams, if drafters may compute for it again; of none, none."""
        self.seq_id = None
        if not streams or self._passed * PROBE_SHARE < self._cost:
            return
        computing = [seq for seq in streams if any(name != LOOKUP for name in seq.drafters)]
        if computing:
            self._passed = 0.0
            found = min(computing, key=lambda seq: (seq.seq_id != self._last, seq.known))
            self.seq_id = self._last = found.seq_id

    def passed(self, seconds: float) -> None:
        """A step takes so long without drafts."""
        self._passed += seconds

    def took(self, seconds: float) -> None:
        """A probe took so long."""
        self._cost = seconds if self._cost == 0.0 else 0.5 * (self._cost + seconds)
