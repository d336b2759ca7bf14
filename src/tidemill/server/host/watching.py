"""Measures how one request is answered, for the comparison of versions."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.server.errors import Rejection
from tidemill.server.host.rollout.observation import Observation
from tidemill.server.host.rollout.routing import Choice

if TYPE_CHECKING:
    from tidemill.generation.request import GenerateRequest
    from tidemill.metrics.registry import ModelMetrics


class Observer(Protocol):
    """What times a request as its tokens come; a `metrics.registry.RequestObserver`."""

    def tokens(self, choice: int, count: int) -> None:
        """`count` tokens of a choice came now."""

    def finish(self, reason: str, prompt_tokens: int = 0, cached_tokens: int = 0) -> None:
        """The request ended: `reason` is a finish reason or an error kind."""


class Watch:
    """Of one request, or of a copy of one; it reports once.

    Args:
        choice: where the request went.
        report: called with the observation.
        copy: what is measured is the choice's shadow, which counts in no metric of requests.

    Attributes:
        choice: as given.
        asked: the request, where it may be copied; set by whoever generates its answer.
        outcome: what was reported.
    """

    def __init__(
        self, choice: Choice, report: Callable[[Observation], None], *, copy: bool = False
    ) -> None:
        self.choice = choice
        self.asked: GenerateRequest | None = None
        self.outcome: Observation | None = None
        self._version = (choice.shadow or "") if copy else choice.version
        self._report = report
        self._counted = not copy
        self._observer: Observer | None = None
        self._began = 0.0
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._tokens = 0
        self._gaps = array("f")

    def begin(self, metrics: ModelMetrics) -> Observer:
        """Time a generation from now on; the model's metrics are told as well."""
        self._observer = metrics.start() if self._counted else None
        self._began = monotonic()
        return self

    def tokens(self, choice: int, count: int) -> None:
        """See `Observer`."""
        if self._observer is not None:
            self._observer.tokens(choice, count)
        if count <= 0:
            return
        now = monotonic()
        if self._first is None:
            self._first = now
        before = self._last.get(choice)
        if before is not None:
            self._gaps.extend([(now - before) / count] * count)
        self._last[choice] = now
        self._tokens += count

    def finish(self, reason: str, prompt_tokens: int = 0, cached_tokens: int = 0) -> None:
        """See `Observer`."""
        if self._observer is not None:
            self._observer.finish(reason, prompt_tokens, cached_tokens)
        error = ErrorKind(reason) if reason in _ERRORS else None
        # What is no text (a vector) comes whole: its time is that of the answer.
        first = self._first if self._first is not None or error else monotonic()
        gaps = sorted(self._gaps)
        self._send(
            Observation(
                version=self._version,
                step=self.choice.step,
                unit=self.choice.unit,
                error=error,
                ttft_s=None if first is None else first - self._began,
                itl_mean_s=sum(gaps) / len(gaps) if gaps else None,
                itl_p95_s=gaps[int(0.95 * (len(gaps) - 1))] if gaps else None,
                output_tokens=round(self._tokens / len(self._last)) if self._last else None,
                computed_prompt_tokens=max(0, prompt_tokens - cached_tokens),
            )
        )

    def failed(self, error: BaseException) -> None:
        """The request ended with an error; says nothing where it was generated and is reported."""
        kind = ErrorKind.CANCELLED
        if isinstance(error, TidemillError):
            kind = error.kind
        elif isinstance(error, Exception):
            kind = ErrorKind.INTERNAL
            if isinstance(error, Rejection):
                kind = _REJECTIONS.get(error.problem.code, ErrorKind.OVERLOADED)
        self._send(
            Observation(
                version=self._version, step=self.choice.step, unit=self.choice.unit, error=kind
            )
        )

    def _send(self, observation: Observation) -> None:
        if self.outcome is None:
            self.outcome = observation
            self._report(observation)


_ERRORS = frozenset(ErrorKind)
# Of a rejection only one is the version's fault: that it can never be loaded.
_REJECTIONS: dict[str | None, ErrorKind] = {"out_of_resources": ErrorKind.RESOURCE}
