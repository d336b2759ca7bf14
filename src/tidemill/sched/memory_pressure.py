"""MemoryPressure: halves the step limits after an out-of-memory step and doubles them later."""

from __future__ import annotations

import dataclasses

from tidemill.sched.policy import Limits

# Successful steps before the limits are doubled.
RELAX_STEPS = 64


class MemoryPressure:
    """The limits in force.

    Args:
        limits: the limits without memory pressure.

    Attributes:
        limits: the limits in force.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._full = limits
        self._steps = 0

    def tighten(self, tokens: int) -> None:
        """Halve the limits after a step of `tokens` tokens ran out of memory."""
        self._steps = 0
        self._set(max(1, tokens // 2))

    def succeeded(self) -> None:
        """Count a successful step; after `RELAX_STEPS` of them, double the limits."""
        if self.limits is self._full:
            return
        self._steps += 1
        if self._steps >= RELAX_STEPS:
            self._steps = 0
            self._set(2 * self.limits.max_step_tokens)

    def _set(self, tokens: int) -> None:
        full = self._full
        if tokens >= full.max_step_tokens:
            self.limits = full
            return
        self.limits = dataclasses.replace(
            full, max_step_tokens=tokens, max_num_seqs=min(full.max_num_seqs, tokens), layers=0
        )
