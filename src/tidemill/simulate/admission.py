"""Admission: the server's own, deciding on what the simulation tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

from tidemill.contract.request import EngineRequest
from tidemill.contract.wire import EngineInfo
from tidemill.generation.caller import Caller
from tidemill.metrics.admission import ModelAdmissionMetrics
from tidemill.server.admission.background import Uncounted
from tidemill.server.admission.control import Admission, Ticket
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.admission.shares import Shares
from tidemill.server.errors import Rejection

_CHOICES = 4096  # in flight, as `tidemill serve` has it
_ANSWERS = 2**29  # bytes of buffered answers, likewise; streams buffer none


def _nothing(*args: object) -> None:
    """Nobody reads these metrics."""


class SimulatedAdmission:
    """Which requests a simulated server takes.

    Args:
        info: of its engine.
        clock: simulated seconds.
    """

    def __init__(self, info: EngineInfo, clock: Callable[[], float]) -> None:
        metrics = SimpleNamespace(
            refused=_nothing, waiting=_nothing, bound=SimpleNamespace(set=_nothing)
        )
        self._admission = Admission(
            AdmissionOptions(),
            lambda: info,
            cast("ModelAdmissionMetrics", metrics),
            choices=Shares(_CHOICES),
            answers=Shares(_ANSWERS),
            clock=clock,
        )
        self._tickets: dict[str, Ticket | Uncounted] = {}

    @property
    def waiting(self) -> tuple[float, int]:
        """Seconds until a further request would begin to be computed, and tokens that wait."""
        return self._admission.predicted_wait, self._admission.waiting_tokens

    def admit(self, request: EngineRequest) -> str | None:
        """Take a request; returns why not, if the server would answer 429."""
        caller = Caller(client=request.tenant)
        try:
            ticket = self._admission.admit(caller, (request.prompt_token_ids,), (request.sampling,))
        except Rejection as rejection:
            return str(rejection)
        self._tickets[request.request_id] = ticket
        return None

    def progress(self, request_id: str, tokens: int) -> None:
        """A request got so many more tokens."""
        self._tickets[request_id].progress(0, tokens)

    def progress_together(self, request_ids: Sequence[str], times: Sequence[float]) -> None:
        """Each of these requests got a token at each of these times, which may be past."""
        tickets = [
            ticket for name in request_ids if isinstance(ticket := self._tickets[name], Ticket)
        ]
        if tickets:
            self._admission.progress_together(tickets, times)

    def end(self, request_id: str, length: int | None = None) -> None:
        """A request has ended with so many tokens; None: it was cancelled."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            ticket.close(() if length is None else (length,))
