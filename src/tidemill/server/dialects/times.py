"""When a request was where, for answers that say how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    def timings(self, prompt: int, cached: int, output: int) -> dict[str, Any]:
        """The object `timings`, as llama.cpp has it: milliseconds by one clock.

        Args:
            prompt: tokens of the prompt.
            cached: those of them that were in the prefix cache.
            output: generated tokens.
        """
        computed = prompt - cached
        prompt_ms, output_ms = self.prompt_seconds * 1e3, self.output_seconds * 1e3
        return {
            "cache_n": cached,
            "prompt_n": computed,
            "prompt_ms": prompt_ms,
            **_rates("prompt", computed, prompt_ms),
            "predicted_n": output,
            "predicted_ms": output_ms,
            **_rates("predicted", output, output_ms),
        }


def _rates(name: str, count: int, milliseconds: float) -> dict[str, float]:
    return {
        f"{name}_per_token_ms": milliseconds / count if count else 0.0,
        f"{name}_per_second": 1e3 * count / milliseconds if milliseconds else 0.0,
    }
