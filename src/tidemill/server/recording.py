"""Makes the record of each request, once, when the request and what it began have ended.

The outermost middleware opens and closes it; in between, the answer leaves what it measured in the
request's state. A generation that goes on without its request holds the record open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request

from tidemill.base.clock import monotonic, wall
from tidemill.contract.prices import Prices
from tidemill.telemetry.phases import Milestones, Phase, phases_of
from tidemill.telemetry.recent import Recent, Story
from tidemill.telemetry.record import Operation, Outcome, RequestRecord

if TYPE_CHECKING:
    from tidemill.contract.request import RequestTimings
    from tidemill.server.access.auth import Principal
    from tidemill.server.errors import Problem
    from tidemill.telemetry.energy import Energy, EnergyMeter
    from tidemill.telemetry.trace import Trace

Sink = Callable[[RequestRecord], None]
State = dict[str, Any]

_NO_STATE: State = {}
_DEADLINE = 408
_CLIENT_CLOSED = 499
_SERVER_ERROR = 500
_OVERLOAD = frozenset({408, 429, 503})
"""Whose messages say what the server lacked, and nothing of what the client sent."""


class Measured(Protocol):
    """What was computed for a request: a generation, or vectors.

    Attributes:
        admitted: it was given to the engine.
        finished: all of it has been computed.
        finish_reasons: of the choices that ended.
        timings: of its choices together, where the engine told them.
        trace: what it noted for its explanation; None: nothing.
    """

    admitted: bool
    finish_reasons: Sequence[str]
    timings: RequestTimings | None
    trace: Trace | None

    @property
    def finished(self) -> bool: ...
    @property
    def num_choices(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def spent(self) -> Mapping[str, tuple[int, int, int]]: ...


class Ends(Protocol):
    """Something in the background that ends."""

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call it once when it has ended, however it ends."""


class Recording:
    """Makes records.

    Args:
        sink: takes each record; it neither blocks nor raises.
        prices: what tokens cost.
        routes: methods and patterns of the routes whose requests are recorded.
        recent: keeps what explains them; None: nobody asks for that.

    Attributes:
        meter: charges them with energy; None: nothing is known of that.
    """

    def __init__(
        self,
        sink: Sink,
        prices: Prices,
        routes: Collection[tuple[str, str]] = (),
        recent: Recent | None = None,
    ) -> None:
        self.sink = sink
        self.meter: EnergyMeter | None = None
        self.recent = recent
        self.prices = prices
        self.routes = frozenset(routes)

    def begin(self, state: State, arrived: float | None = None) -> OpenRecord:
        """A request has arrived.

        Args:
            state: its ASGI state.
            arrived: when, of the monotonic clock; None: now.
        """
        record = state["record"] = OpenRecord(self, state, arrived)
        if self.recent is not None:
            self.recent.begin(id(record), record.story)
        return record


class OpenRecord:
    """The record of a request that has not ended."""

    __slots__ = (
        "_at",
        "_began",
        "_holders",
        "_method",
        "_recording",
        "_route",
        "_state",
        "_status",
    )

    def __init__(self, recording: Recording, state: State, arrived: float | None = None) -> None:
        self._recording = recording
        self._state = state
        now = monotonic()
        self._began = now if arrived is None else arrived
        self._at = wall() - (now - self._began)
        self._holders = 1
        self._status = 0
        self._method = self._route = ""

    def hold(self) -> Callable[[], None]:
        """Keep it open until what is returned is called."""
        self._holders += 1
        return self._release

    def close(self, status: int, method: str, route: str | None) -> None:
        """The request has ended, or its last byte is about to be sent.

        Args:
            status: of the response.
            method: HTTP's.
            route: pattern of its route; None: unknown.
        """
        if self._status:
            return
        self._status, self._method, self._route = status, method, route or ""
        self._release()

    def _release(self) -> None:
        self._holders -= 1
        if self._holders:
            return
        recent, story = self._recording.recent, None
        if self._wanted():
            made = self._made()
            self._recording.sink(made)
            if recent is not None:
                story = self._told(made, monotonic())
        if recent is not None:
            recent.end(id(self), story)
        # The state has this record: without the cycle all of the request is freed at once.
        self._state = _NO_STATE

    def _wanted(self) -> bool:
        if (self._method, self._route) not in self._recording.routes:
            return False
        # What neither asked a model for anything nor was refused: a look at a model's description.
        return "operation" in self._state or self._status >= 400

    def story(self) -> Story | None:
        """Of a request that runs, as far as it is known; None of one that asks nothing of a
        model."""
        state = self._state
        if "operation" not in state or state["operation"] == Operation.ADMIN:
            return None
        self._route = state.get("route", "")
        return self._told(self._made(), 0.0)

    def _told(self, record: RequestRecord, ended: float) -> Story:
        state = self._state
        measured: Measured | None = state.get("generation")
        problem: Problem | None = state.get("problem")
        refused = problem is not None and problem.status in _OVERLOAD
        return Story(
            record,
            self._milestones(ended),
            None if measured is None else measured.trace,
            problem.message if problem is not None and refused else "",
            state.get("trace_context"),
            state.get("ways", ()),
        )

    def _milestones(self, ended: float) -> Milestones:
        state = self._state
        leased: float = state.get("leased", 0.0)
        return Milestones(self._began, state.get("begun", leased), leased, ended)

    def phases(self) -> list[Phase]:
        """Where its time went up to now; none of a request that no model answers, or where nobody
        asks for it."""
        measured: Measured | None = self._state.get("generation")
        if measured is None or measured.trace is None:
            return []
        return phases_of(self._milestones(0.0), measured.trace, monotonic())

    def _made(self) -> RequestRecord:
        state = self._state
        principal: Principal | None = state.get("principal")
        problem: Problem | None = state.get("problem")
        measured: Measured | None = state.get("generation")
        name: str = state.get("model") or ""
        model, _, version = name.partition("@")
        outcome = _outcome(measured, problem, self._status)
        prompt = cached = generated = reasoning = choices = 0
        finish, charged, cost = "", False, None
        times: tuple[int | None, int | None, int | None] = (None, None, None)
        computed: int | None = None
        energy: Energy | None = None
        if measured is not None and measured.admitted:
            prompt, cached = measured.prompt_tokens, measured.cached_tokens
            generated, reasoning = measured.completion_tokens, measured.reasoning_tokens
            choices = measured.num_choices
            reasons = measured.finish_reasons
            finish = reasons[0] if len(reasons) == 1 else ",".join(dict.fromkeys(reasons))
            charged = outcome in (Outcome.FINISHED, Outcome.CANCELLED)
            if charged and (prices := self._recording.prices):
                cost = sum(prices.cost(one, *tokens) for one, tokens in measured.spent.items())
            if measured.timings is not None:
                times = times_of(measured.timings)
                seconds = measured.timings.computed
                computed = _microseconds(seconds) or None
                if self._recording.meter is not None:
                    energy = self._recording.meter.charge(seconds)
        return RequestRecord(
            id=state["request_id"],
            at=int(self._at * 1000),
            duration=_microseconds(monotonic() - self._began),
            organisation="" if principal is None else principal.organisation,
            team="" if principal is None else principal.team,
            key=_key_of(principal),
            user="" if principal is None else principal.user,
            client="" if principal is None else principal.client_id,
            method=self._method,
            route=self._route,
            subject=state.get("subject", ""),
            operation=state.get("operation", Operation.NONE),
            model=model,
            version=version,
            prompt=prompt,
            cached=cached,
            generated=generated,
            reasoning=reasoning,
            choices=choices,
            outcome=outcome,
            finish=finish,
            status=self._status,
            code="" if problem is None else problem.code or "error",
            streamed=state.get("streamed", False),
            charged=charged,
            cost=cost,
            queued=times[0],
            prefill=times[1],
            decode=times[2],
            computed=computed,
            energy=None if energy is None or energy.estimated else round(energy.joules * 1e6),
            estimated=round(energy.joules * 1e6) if energy and energy.estimated else None,
            carbon=None if energy is None or energy.grams is None else round(energy.grams * 1e6),
        )


def record_of(request: Request) -> OpenRecord | None:
    """The open record of a request; None where none is made."""
    found: OpenRecord | None = getattr(request.state, "record", None)
    return found


def record_until(request: Request, background: Ends) -> None:
    """The record of a request stays open until `background` has ended."""
    record = record_of(request)
    if record is not None:
        background.on_end(record.hold())


def _key_of(principal: Principal | None) -> str:
    """Id of a key; of one in a key file its name, ``key:NAME``; empty where there are no keys."""
    if principal is None:
        return ""
    client = principal.client_id
    return principal.key_id or (client if client.startswith("key:") else "")


def _outcome(measured: Measured | None, problem: Problem | None, status: int) -> Outcome:
    if problem is not None:
        if problem.status >= _SERVER_ERROR:
            return Outcome.FAILED
        began = measured is not None and measured.admitted
        late = problem.status == _DEADLINE and began
        return Outcome.CANCELLED if late else Outcome.REFUSED
    if measured is not None:
        return Outcome.FINISHED if measured.finished else Outcome.CANCELLED
    if status == _CLIENT_CLOSED:
        return Outcome.CANCELLED
    return Outcome.FINISHED if status < 400 else Outcome.REFUSED


def times_of(timings: RequestTimings) -> tuple[int | None, int | None, int | None]:
    """Queued, prefill and decode; of what ended before a milestone, the rest is None."""
    scheduled, first, end = timings.first_scheduled, timings.first_token, timings.finished
    queued = _microseconds((scheduled or end) - timings.received)
    if not scheduled:
        return queued, None, None
    prefill = _microseconds((first or end) - scheduled)
    return queued, prefill, _microseconds(end - first) if first else None


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
