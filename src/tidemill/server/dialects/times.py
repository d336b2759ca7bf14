"""When a request was where, for answers that say how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.base.clock import monotonic


@dataclass(slots=True)
class Times:
    """In seconds of `base.clock.monotonic`.

    Attributes:
        arrival: it was received.
        leased: its model was loaded.
        first, last: its first and its latest token came.
    """

    arrival: float
    leased: float
    first: float | None = None
    last: float = 0.0

    def tick(self) -> None:
        """A token came."""
        self.last = monotonic()
        if self.first is None:
            self.first = self.last

    @property
    def prompt_seconds(self) -> float:
        """From the model's readiness to the first token."""
        return 0.0 if self.first is None else self.first - self.leased

    @property
    def output_seconds(self) -> float:
        """From the first token to the last."""
        return 0.0 if self.first is None else self.last - self.first
