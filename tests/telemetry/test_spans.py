"""The spans of a request."""

from __future__ import annotations

import itertools

from tidemill.contract.history import ChoiceHistory, Preemption, PromptChunk
from tidemill.contract.request import ChoiceOutput, FinishReason, RequestTimings
from tidemill.contract.wire import EngineStats
from tidemill.telemetry.facts import StreamFacts
from tidemill.telemetry.phases import Milestones
from tidemill.telemetry.recent import Story
from tidemill.telemetry.record import RequestRecord
from tidemill.telemetry.spans import NO_PARENT, Span, spans_of
from tidemill.telemetry.trace import Segment, Trace

TIMES = Milestones(100.0, 100.25, 100.5, 112.0)
HISTORY = ChoiceHistory(
    chunks=(
        PromptChunk(104.0, 7, 0, 100, "tokens"),
        PromptChunk(105.0, 8, 100, 28, "prompt"),
        PromptChunk(109.0, 30, 0, 140, "prompt"),
    ),
    preemptions=(Preemption(108.0, "growth", 140),),
)
RECORD = RequestRecord(
    "req_1", 0, duration=12_000_000, team="t1", route="/v1/chat/completions", operation="generate",
    model="tiny", version="2", prompt=128, cached=32, generated=20, reasoning=4, choices=1,
    finish="stop", status=200, streamed=True,
)  # fmt: skip


def stream(lost: float = 0.0) -> StreamFacts:
    facts = StreamFacts()
    facts.sent(103.0)
    stats = EngineStats()
    facts.output(ChoiceOutput("r", 0, (1,), scheduled=104.0, cached_tokens=32), 106.0, stats)
    if lost:
        facts.lost(lost, "crash")
        facts.sent(lost + 0.5)
        facts.output(ChoiceOutput("r", 0, (1,), scheduled=lost + 0.75), lost + 1.0, stats)
    timings = RequestTimings(103.1, 104.0, 106.0, 111.0)
    last = ChoiceOutput(
        "r", 0, (1,), finish_reason=FinishReason.STOP, timings=timings, history=HISTORY
    )
    facts.output(last, 111.1, stats)
    return facts


def trace(*streams: StreamFacts) -> Trace:
    return Trace(
        "chatcmpl-1", (), began=101.0, reserved=101.5, admitted=102.0, submitted=102.5,
        streams=[*streams],
    )  # fmt: skip


def tree(spans: list[Span]) -> list[tuple[str, str]]:
    """Names of spans and of their parents."""
    return [(s.name, "" if s.parent == NO_PARENT else spans[s.parent].name) for s in spans]


def test_a_whole_request() -> None:
    spans = spans_of(Story(RECORD, TIMES, trace(stream())), "https")
    assert spans[0].parent == NO_PARENT and spans[0].server
    assert tree(spans) == [
        ("POST /v1/chat/completions", ""),
        ("chat tiny", "POST /v1/chat/completions"),
        ("engine", "chat tiny"),
        ("read", "POST /v1/chat/completions"),
        ("model", "POST /v1/chat/completions"),
        *((name, "chat tiny") for name in ("prepare", "quota", "admission", "dispatch")),
        *((name, "engine") for name in ("queue", "prefill", "decode", "preempted", "decode")),
        ("deliver", "chat tiny"),
    ]
    http, chat, engine = spans[:3]
    assert (http.start, http.end) == (100.0, 112.0)
    assert http.attributes["http.response.status_code"] == 200
    assert http.attributes["url.scheme"] == "https"
    assert http.attributes["tidemill.team.id"] == "t1"
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tidemill",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny@2",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 128,
        "gen_ai.usage.cache_read.input_tokens": 32,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "gen_ai.request.stream": True,
    }
    assert wanted.items() <= chat.attributes.items() and "error.type" not in chat.attributes
    events = [event.name for event in engine.events]
    assert events.count("prefill.chunk") == 3 and "preempted" in events
    assert [event.at for event in engine.events] == sorted(event.at for event in engine.events)


def test_the_phases_are_all_of_the_time() -> None:
    spans = spans_of(Story(RECORD, TIMES, trace(stream())), "http")
    phases = [span for span in spans if "tidemill.phase" in span.attributes]
    assert phases[0].start == TIMES.arrival and phases[-1].end == TIMES.ended
    assert all(one.end == two.start for one, two in itertools.pairwise(phases))


def test_a_recovery_is_two_engines() -> None:
    spans = spans_of(Story(RECORD, TIMES, trace(stream(lost=107.0))), "http")
    first, second = (span for span in spans if span.name == "engine")
    assert (first.error, first.attributes["error.type"], first.end) == ("crash", "crash", 107.0)
    assert first.events[-1].name == "engine.lost"
    assert not second.error and second.attributes["tidemill.engine.attempt"] == 2
    [recovery] = [span for span in spans if span.name == "recovery"]
    assert (recovery.start, recovery.end) == (107.0, 108.0)
    parents = [spans[span.parent] for span in spans if span.name == "decode"]
    assert first in parents and second in parents


def test_an_error_is_said_without_its_message() -> None:
    record = RequestRecord(
        "r", 0, route="/v1/completions", operation="generate", model="tiny", outcome="failed",
        status=500, code="internal",
    )  # fmt: skip
    http, inference, *_ = spans_of(Story(record, TIMES, None), "http")
    assert http.error == inference.error == "internal"
    assert inference.name == "text_completion tiny"


def test_a_client_s_fault_is_no_error_of_the_server() -> None:
    record = RequestRecord("r", 0, route="/v1/completions", outcome="refused", status=400, code="x")
    spans = spans_of(Story(record, TIMES, None), "http")
    assert spans[0].error == "" and spans[0].attributes["http.response.status_code"] == 400
    assert {span.name for span in spans} == {"POST /v1/completions", "read", "model", "work"}


def test_parts_of_the_output_and_calls_of_a_pipeline() -> None:
    whole = trace()
    whole.outputs[0] = [Segment("thinking", 106.0), Segment("tools", 108.0)]
    whole.called("tiny", trace(stream()))
    spans = spans_of(Story(RECORD, TIMES, whole), "http")
    outputs = [(s.name, s.start, s.end) for s in spans if s.name.startswith("output")]
    assert outputs == [("output thinking", 106.0, 108.0), ("output tools", 108.0, 112.0)]
    call = next(i for i, span in enumerate(spans) if i > 1 and span.name == "chat tiny")
    assert (spans[call].start, spans[call].end) == (101.0, 111.0)
    below = {span.name for span in spans if span.parent == call}
    assert {"engine", "quota", "admission", "dispatch"} <= below
