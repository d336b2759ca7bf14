"""SimulatedServer: an engine behind its API process, as clients see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from tidemill.bench.results import RequestTrace
from tidemill.contract.request import AdapterUse, EngineRequest
from tidemill.contract.sampling import SamplingParams
from tidemill.sched.decode_run import RunRow
from tidemill.sched.sequence import Emission
from tidemill.simulate.admission import SimulatedAdmission
from tidemill.simulate.costs import Costs, EngineFacts
from tidemill.simulate.decode import Landed, token_at
from tidemill.simulate.engine import NO_PARTS, Parts, SimulatedEngine, info_of
from tidemill.simulate.timeline import Timeline


@dataclass(slots=True, eq=False)
class Call:
    """A client's request.

    Attributes:
        prompt: token ids.
        output: tokens to generate.
        trace: what the client sees of it; its times are relative to `zero`.
        on_end: called at the time of its end.
        tenant: whose it is.
        answer: its tokens, where the next turn of a conversation needs them; else None.
        model: the name that it asks for; None: the base model.
    """

    prompt: tuple[int, ...]
    output: int
    trace: RequestTrace
    zero: float
    on_end: Callable[[], None]
    tenant: str = ""
    answer: list[int] | None = None
    model: str | None = None
    ended: bool = False
    request_id: str = ""


class SimulatedServer:
    """An API process with one engine. It does one thing after another: reading requests, and
    writing the chunks of a step.

    Args:
        timeline: its time.
        facts, costs, noise, parts: see `SimulatedEngine`.
        admits: with the server's admission, which answers 429 where its queue is full.

    Attributes:
        refused: requests that got 429.
        on_first, on_end: called with a call whose first token, or whose end, has left the engine.
    """

    def __init__(
        self,
        timeline: Timeline,
        facts: EngineFacts,
        costs: Costs,
        noise: Callable[[], float],
        parts: Parts = NO_PARTS,
        *,
        admits: bool = True,
    ) -> None:
        self.refused = 0
        self._admission = SimulatedAdmission(info_of(facts), timeline.clock) if admits else None
        self.engine = SimulatedEngine(
            timeline,
            facts,
            costs,
            noise,
            self._receive,
            self._receive_run,
            parts,
        )
        self._adapters, self._model = parts.adapters, facts.model
        self._timeline = timeline
        self._host = costs.host
        self._calls: dict[str, Call] = {}
        self._ids = count()
        self._free = 0.0  # when the API process has done what it was given
        self.on_first: Callable[[Call], None] = _ignore
        self.on_end: Callable[[Call], None] = _ignore

    @property
    def active(self) -> int:
        """Requests that it has."""
        return len(self._calls)

    def waiting(self) -> tuple[float | None, int]:
        """As its route `/load`: seconds that a further request would wait, and prompt tokens that
        do; None without admission, which knows it."""
        if self._admission is None:
            return None, self.engine.scheduler.stats().waiting_tokens
        self.engine.catch_up()
        return self._admission.waiting

    def send(self, call: Call) -> None:
        """A client sends a request now."""
        self.engine.catch_up()
        host, now = self._host, self._timeline.now
        call.request_id = str(next(self._ids))
        request = EngineRequest(
            request_id=call.request_id,
            prompt_token_ids=call.prompt,
            sampling=SamplingParams(max_tokens=call.output, seed=0, temperature=0.0),
            arrival=now,
            tenant=call.tenant,
            adapters=self._uses(call.model),
        )
        self._calls[call.request_id] = call
        self._free = max(now, self._free) + host.request + host.prompt_token * len(call.prompt)
        self._timeline.at(self._free, partial(self._submit, request))

    def _uses(self, model: str | None) -> tuple[AdapterUse, ...]:
        if model is None or model == self._model or self._adapters is None:
            return ()
        return (self._adapters.use(model),)

    def _submit(self, request: EngineRequest) -> None:
        call = self._calls.get(request.request_id)
        if call is None:  # its client has gone meanwhile
            return
        if self._admission is not None and (why := self._admission.admit(request)):
            self._refuse(call, why)
        else:
            self.engine.submit(request)

    def _refuse(self, call: Call, why: str) -> None:
        self.refused += 1
        del self._calls[call.request_id]
        self.on_end(call)
        refuse(call, self._timeline.now, "http 429", why)

    def cancel(self, call: Call) -> None:
        """The client gives up."""
        self.engine.catch_up()
        if self._calls.pop(call.request_id, None) is not None:
            self.engine.cancel(call.request_id)
            if self._admission is not None:
                self._admission.end(call.request_id)

    def _receive(self, when: float, outputs: list[Emission]) -> None:
        """The engine's outputs leave it at a time; each of them becomes a chunk."""
        host, calls, admission = self._host, self._calls, self._admission
        done = max(when + host.deliver, self._free)
        together: list[str] = []  # requests that got one more token, since the last other output
        for _, output in outputs:
            call = calls.get(output.request_id)
            if call is None:
                continue
            done += host.chunk
            trace = call.trace
            if output.finish_reason is None and len(output.token_ids) == 1 and trace.arrivals:
                trace.arrivals.append(done - call.zero)
                trace.output_tokens += 1
                together.append(output.request_id)
                if call.answer is not None:
                    call.answer += output.token_ids
                continue
            if admission is not None and together:
                admission.progress_together(together, (self._timeline.now,))
                together = []
            if output.token_ids:
                if not trace.arrivals:
                    self.on_first(call)
                trace.arrivals.append(done - call.zero)
                trace.output_tokens += len(output.token_ids)
                if admission is not None:
                    admission.progress(output.request_id, len(output.token_ids))
                if call.answer is not None:
                    call.answer += output.token_ids
            if output.cached_tokens:
                trace.cached_tokens = output.cached_tokens
            if output.finish_reason is not None:
                del calls[output.request_id]
                if admission is not None:
                    admission.end(output.request_id, trace.output_tokens)
                trace.end = done - call.zero
                trace.finish_reason = str(output.finish_reason)
                if output.error is not None:
                    trace.error, trace.detail = output.error.kind, output.error.message
                self.on_end(call)
                self._timeline.at(done, partial(_end, call))
        if admission is not None and together:
            admission.progress_together(together, (self._timeline.now,))
        self._free = max(self._free, done)

    def _receive_run(self, rows: Sequence[RunRow], steps: Sequence[Landed]) -> None:
        """Steps have given each of these rows a token, and nothing else: as `_receive` for each."""
        host, free = self._host, self._free
        calls = [self._calls[row.request_id] for row in rows]
        into = [(call.trace.arrivals.append, call.zero) for call in calls]
        chunk, deliver = host.chunk, host.deliver
        for step in steps:
            done = max(step.leaves + deliver, free)
            for append, zero in into:
                done += chunk
                append(done - zero)
            free = max(free, done)
        self._free = free
        for call in calls:
            call.trace.output_tokens += len(steps)
        if self._admission is not None:
            self._admission.progress_together(
                [row.request_id for row in rows], [step.at for step in steps]
            )
        for row, call in zip(rows, calls, strict=True):
            if call.answer is not None:
                call.answer += [token_at(row.seq_id, row.start + step.number) for step in steps]


def refuse(call: Call, now: float, error: str, why: str) -> None:
    """A call ends with an error before an engine has seen it."""
    trace = call.trace
    trace.error, trace.detail, trace.end = error, why, now - call.zero
    _end(call)


def _ignore(call: Call) -> None:
    """Nobody asks."""


def _end(call: Call) -> None:
    if not call.ended:
        call.ended = True
        call.on_end()
