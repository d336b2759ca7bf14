"""One request as the spans of a trace: made of what is kept of it, after it has ended.

Names and attributes are those of OpenTelemetry's semantic conventions for HTTP and for generative
AI (`GENAI_VERSION`), where they have any, else `tidemill.*`. There is no content in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.contract.history import ChoiceHistory
from tidemill.telemetry.facts import Life, StreamFacts
from tidemill.telemetry.phases import Milestones, Phase, histories_of, phases_of
from tidemill.telemetry.recent import Story
from tidemill.telemetry.record import Operation, Outcome, RequestRecord
from tidemill.telemetry.trace import Trace
from tidemill.telemetry.ways import target_of

GENAI_VERSION = "0.1.0"
"""Of the semantic conventions for generative AI, which have a repository of their own."""

PROVIDER = "tidemill"

Value = str | bool | int | float | Sequence[str]
Attributes = dict[str, Value]

NO_PARENT = -1

_SERVER_ERROR = 500
_OF_ENGINE = frozenset(("lost", "grammar", "adapter", "queue", "prefill", "decode", "preempted"))
"""Phases that an engine process spends."""

_TEXT_ROUTES = frozenset(
    ("/v1/completions", "/completions", "/completion", "/api/generate", "/generate")
)
"""Whose requests are prompts; others of the same operation are conversations."""


class Event(NamedTuple):
    """Something that happened in a span, at a time of the monotonic clock."""

    name: str
    at: float
    attributes: Attributes


class Span(NamedTuple):
    """A span.

    Attributes:
        name: see the conventions.
        start, end: of the monotonic clock.
        parent: index of its parent among the request's spans; NO_PARENT: it is their root, whose
            parent is the client's.
        attributes: see the conventions.
        events: in order.
        error: why it failed; empty: it did not.
        server: it answers somebody else's request.
    """

    name: str
    start: float
    end: float
    parent: int
    attributes: Attributes
    events: Sequence[Event] = ()
    error: str = ""
    server: bool = False


def operation_of(record: RequestRecord) -> str:
    """`gen_ai.operation.name`."""
    if record.operation == Operation.EMBED:
        return "embeddings"
    if record.operation != Operation.GENERATE:
        return record.operation or "none"
    return "text_completion" if record.route in _TEXT_ROUTES else "chat"


def model_attributes(record: RequestRecord) -> Attributes:
    """What spans and metrics say of a request's model, and of its error."""
    found: Attributes = {
        "gen_ai.operation.name": operation_of(record),
        "gen_ai.provider.name": PROVIDER,
    }
    if record.model:
        found["gen_ai.request.model"] = record.model
        found["gen_ai.response.model"] = _versioned(record)
    if error := error_of(record):
        found["error.type"] = error
    return found


def error_of(record: RequestRecord) -> str:
    """`error.type`; empty: it did not fail."""
    if record.outcome == Outcome.CANCELLED:
        return "cancelled"
    return record.code or (str(record.status) if record.status >= 400 else "")


def spans_of(story: Story, scheme: str) -> list[Span]:
    """The spans of a request that has ended, the root first.

    Args:
        story: of the request.
        scheme: ``http`` or ``https``.
    """
    record, times, trace = story.record, story.milestones, story.trace
    found = [_http(record, times, scheme)]
    phases = story.phases(times.ended)
    if not record.model:
        found += _of_phases(times.arrival, phases, 0, [])
        return found
    found.append(_inference(story))
    if trace is None:
        found += _of_phases(times.arrival, phases, 1, [])
        return found
    _add_answer(found, times, trace, 1, phases)
    for model, call in trace.calls:
        _add_call(found, model, call, times.ended)
    return found


def _versioned(record: RequestRecord) -> str:
    return f"{record.model}@{record.version}" if record.version else record.model


def _http(record: RequestRecord, times: Milestones, scheme: str) -> Span:
    attributes: Attributes = {
        "http.request.method": record.method,
        "http.route": record.route,
        "url.scheme": scheme,
        "tidemill.request.id": record.id,
    }
    if record.status:
        attributes["http.response.status_code"] = record.status
    of = {"organisation": record.organisation, "team": record.team, "key": record.key}
    attributes |= {f"tidemill.{name}.id": value for name, value in of.items() if value}
    error = error_of(record) if record.status >= _SERVER_ERROR else ""
    if error:
        attributes["error.type"] = error
    name = f"{record.method} {record.route}".strip()
    return Span(name, times.arrival, times.ended, NO_PARENT, attributes, error=error, server=True)


def _inference(story: Story) -> Span:
    record, times, trace = story.record, story.milestones, story.trace
    attributes = model_attributes(record) | {
        "gen_ai.request.stream": record.streamed,
        "gen_ai.usage.input_tokens": record.prompt,
        "gen_ai.usage.output_tokens": record.generated,
        "gen_ai.usage.cache_read.input_tokens": record.cached,
        "tidemill.outcome": record.outcome,
    }
    if record.choices > 1:
        attributes["gen_ai.request.choice.count"] = record.choices
    if record.finish:
        attributes["gen_ai.response.finish_reasons"] = record.finish.split(",")
    if record.reasoning:
        attributes["gen_ai.usage.reasoning.output_tokens"] = record.reasoning
    if record.computed is not None:
        attributes["tidemill.computed.seconds"] = record.computed / 1e6
    energy = record.estimated if record.energy is None else record.energy
    if energy is not None:
        attributes["tidemill.energy.joules"] = energy / 1e6
        attributes["tidemill.energy.estimated"] = record.energy is None
    if story.ways:
        attributes["tidemill.gateway.target"] = target_of(story.ways)
    if story.refusal:
        attributes["tidemill.refusal"] = story.refusal
    if trace is not None:
        attributes |= _of_trace(trace)
    error = error_of(record)
    name = f"{operation_of(record)} {record.model}"
    begin = times.begun or times.arrival
    return Span(name, begin, times.ended, 0, attributes, error=error)


def _of_trace(trace: Trace) -> Attributes:
    found: Attributes = {}
    if trace.answer_id:
        found["gen_ai.response.id"] = trace.answer_id
    if trace.adapters:
        found["tidemill.adapters"] = list(trace.adapters)
    if trace.admission is not None:
        of = trace.admission
        found["tidemill.admission.decision"] = of.decision
        found["tidemill.admission.waiting_tokens"] = of.waiting
        found["tidemill.admission.expected_tokens"] = of.expected
    return found


def _add_answer(
    found: list[Span], times: Milestones, trace: Trace, parent: int, phases: Sequence[Phase]
) -> None:
    """Engines, phases and the parts of the output of one generation."""
    engines: list[tuple[int, float, float]] = []
    for number, stream in enumerate(trace.streams):
        for span in _engines(number, stream, parent, times.ended):
            engines.append((len(found), span.start, span.end))
            found.append(span)
    alone = engines if len(trace.streams) == 1 else []
    found += _of_phases(times.arrival, phases, parent, alone)
    found += _outputs(trace, parent, times.ended)


def _add_call(found: list[Span], model: str, call: Trace, ended: float) -> None:
    """A pipeline's call of a model; one that was refused before it was prepared has no span."""
    if not call.began:
        return
    last = max((_end(stream, ended) for stream in call.streams), default=ended)
    times = Milestones(call.began, call.began, call.began, last)
    attributes = _of_trace(call) | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.usage.output_tokens": sum(
            choice.tokens for stream in call.streams for choice in stream.choices.values()
        ),
    }
    found.append(Span(f"chat {model}", call.began, last, 1, attributes))
    _add_answer(found, times, call, len(found) - 1, phases_of(times, call, last))


def _end(stream: StreamFacts, ended: float) -> float:
    ends = [c.timings.finished for c in stream.choices.values() if c.timings is not None]
    return max(ends) if len(ends) == len(stream.choices) and ends else ended


def _engines(number: int, stream: StreamFacts, parent: int, ended: float) -> Iterator[Span]:
    """One span for each engine process that had the request."""
    histories = histories_of([stream])
    for i, life in enumerate(stream.lives):
        end = life.lost or _end(stream, ended)
        attributes: Attributes = {"tidemill.engine.attempt": i + 1}
        if number:
            attributes["tidemill.prompt"] = number
        if life.lost:
            attributes["error.type"] = life.cause
        events = [
            event
            for event in (*_events(stream, histories), *_recovered(life))
            if life.sent <= event.at <= end
        ]
        events.sort(key=lambda event: event.at)
        start = min(life.sent, end)
        yield Span("engine", start, end, parent, attributes, events, life.cause)


def _recovered(life: Life) -> Iterator[Event]:
    if life.lost:
        yield Event("engine.lost", life.lost, {"tidemill.cause": life.cause})


def _events(stream: StreamFacts, histories: Sequence[ChoiceHistory]) -> Iterator[Event]:
    for history in histories:
        for chunk in history.chunks:
            attributes: Attributes = {
                "tidemill.step": chunk.step,
                "tidemill.position": chunk.start,
                "tidemill.tokens": chunk.tokens,
                "tidemill.limit": chunk.limit,
            }
            yield Event("prefill.chunk", chunk.at, attributes)
        for preemption in history.preemptions:
            cause: Attributes = {"tidemill.cause": preemption.cause}
            yield Event("preempted", preemption.at, cause)
    for choice in stream.choices.values():
        for gap in choice.slowest:
            slow: Attributes = {
                "tidemill.seconds": gap.seconds,
                "tidemill.token": gap.tokens,
                "tidemill.steps": gap.steps,
                "tidemill.step.rows": gap.step_rows,
                "tidemill.step.tokens": gap.step_tokens,
            }
            yield Event("slow_gap", gap.end, slow)


def _of_phases(
    arrival: float,
    phases: Sequence[Phase],
    parent: int,
    engines: Sequence[tuple[int, float, float]],
) -> Iterator[Span]:
    """A span for each phase: below the engine process that spent it, where that is known."""
    for phase in phases:
        start, end = arrival + phase.start, arrival + phase.end
        middle, at = (start + end) / 2, parent
        if phase.name in _OF_ENGINE:
            at = next((i for i, begin, last in engines if begin <= middle <= last), parent)
        if phase.name in ("read", "model"):
            at = 0
        yield Span(phase.name, start, end, at, {"tidemill.phase": phase.name})


def _outputs(trace: Trace, parent: int, ended: float) -> Iterator[Span]:
    """Thinking, text and tool calls, of answers that have more than text."""
    for choice, segments in sorted(trace.outputs.items()):
        if all(segment.kind == "text" for segment in segments):
            continue
        ends = [*(segment.at for segment in segments[1:]), ended]
        for segment, end in zip(segments, ends, strict=True):
            attributes: Attributes = {"tidemill.choice": choice, "tidemill.output": segment.kind}
            yield Span(f"output {segment.kind}", segment.at, end, parent, attributes)
