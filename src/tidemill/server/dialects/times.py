"""When a request was where, for answers that say how long it took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemill.base.clock import monotonic
from tidemill.contract.request import RequestTimings

if TYPE_CHECKING:
    from tidemill.server.recording import OpenRecord


@dataclass(slots=True)
class Times:
    """In seconds of `base.clock.monotonic`.

    Attributes:
        arrival: it was received.
        leased: its model was loaded.
        first, last: its first and its latest token came.
        scheduled: its prompt was begun to be computed, where the engine told that.
        record: of the request, where there is one: it has the phases.
    """

    arrival: float
    leased: float
    first: float | None = None
    last: float = 0.0
    scheduled: float | None = None
    record: OpenRecord | None = None

    def phases(self) -> dict[str, Any]:
        """Members that say where the time went up to now; empty where nobody notes it."""
        phases = [] if self.record is None else self.record.phases()
        if not phases:
            return {}
        rounded = [(phase.name, round(phase.seconds, 6)) for phase in phases]
        shown = [{"name": name, "seconds": seconds} for name, seconds in rounded]
        return {"phases": shown, "total_seconds": round(sum(s for _, s in rounded), 6)}

    def tick(self) -> None:
        """A token came."""
        self.last = monotonic()
        if self.first is None:
            self.first = self.last

    def measured(self, engine: RequestTimings | None) -> Times:
        """The same as the engine measured it, where it has: several tokens may come here at once.
        A request that ends here (at a stop string) is not measured there."""
        if engine is None or not engine.first_token:
            return self
        return replace(
            self,
            scheduled=engine.first_scheduled or None,
            first=engine.first_token,
            last=engine.finished,
        )

    @property
    def prompt_seconds(self) -> float:
        """From the beginning of the prompt's computation, else the model's readiness, to the first
        token."""
        begun = self.leased if self.scheduled is None else self.scheduled
        return 0.0 if self.first is None else self.first - begun

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
