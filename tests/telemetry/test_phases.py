"""The phases of a request make up all of its time, whatever is known of it."""

from __future__ import annotations

import itertools
import random

import pytest

from tidemill.contract.history import ChoiceHistory, Preemption, PromptChunk
from tidemill.contract.request import ChoiceOutput, FinishReason, RequestTimings
from tidemill.contract.wire import EngineStats
from tidemill.telemetry.explain import summary
from tidemill.telemetry.facts import MAX_GAPS, ChoiceFacts, StreamFacts
from tidemill.telemetry.phases import PHASES, Milestones, phases_of
from tidemill.telemetry.recent import Story
from tidemill.telemetry.record import RequestRecord
from tidemill.telemetry.trace import Trace
from tidemill.telemetry.ways import Way

NO_STATS = EngineStats()


def stream(
    *outputs: tuple[float, int],
    timings: RequestTimings | None = None,
    history: ChoiceHistory | None = None,
    scheduled: float = 0.0,
) -> StreamFacts:
    """A stream whose outputs come at these times with so many tokens; the last ends it."""
    facts = StreamFacts()
    facts.sent(3.0)
    for i, (at, tokens) in enumerate(outputs):
        last = timings is not None and i == len(outputs) - 1
        output = ChoiceOutput(
            "r", 0, (1,) * tokens, scheduled=scheduled if i == 0 else 0.0,
            finish_reason=FinishReason.STOP if last else None,
            timings=timings if last else None, history=history if last else None,
        )  # fmt: skip
        facts.output(output, at, NO_STATS)
    return facts


def trace(*streams: StreamFacts) -> Trace:
    return Trace("a", (), began=1.0, reserved=1.5, admitted=2.0, submitted=2.5, streams=[*streams])


def named(milestones: Milestones, found: Trace | None, now: float = 20.0) -> dict[str, float]:
    phases = phases_of(milestones, found, now)
    assert sum(p.seconds for p in phases) == pytest.approx(
        (milestones.ended or now) - milestones.arrival
    )
    for before, after in itertools.pairwise(phases):
        assert before.end == after.start
    assert {phase.name for phase in phases} <= set(PHASES)
    return {phase.name: round(phase.seconds, 6) for phase in phases}


ALL = Milestones(arrival=0.0, begun=0.25, leased=0.5, ended=12.0)


def test_a_whole_request() -> None:
    timings = RequestTimings(3.0, 4.0, 6.0, 11.0)
    found = trace(stream((6.1, 1), (11.1, 1), timings=timings, scheduled=4.0))
    assert named(ALL, found) == {
        "read": 0.25, "model": 0.25, "prepare": 0.5, "quota": 0.5, "admission": 1.0,
        "dispatch": 0.5, "queue": 1.0, "prefill": 2.0, "decode": 5.0, "deliver": 1.0,
    }  # fmt: skip


def test_a_grammar_and_a_preemption() -> None:
    history = ChoiceHistory(
        ready=3.5,
        chunks=(PromptChunk(4.0, 1, 0, 9, "prompt"), PromptChunk(8.0, 7, 0, 12, "prompt")),
        preemptions=(Preemption(7.0, "growth", 12),),
    )
    timings = RequestTimings(3.0, 4.0, 6.0, 11.0, preemptions=1)
    found = trace(stream((6.1, 1), (11.1, 1), timings=timings, history=history))
    phases = named(ALL, found)
    assert (phases["grammar"], phases["queue"], phases["preempted"]) == (0.5, 0.5, 1.0)
    assert phases["prefill"] == 2.0
    parts = [phase.name for phase in phases_of(ALL, found, 0.0)]
    assert parts[-4:] == ["decode", "preempted", "decode", "deliver"]


def test_adapters_and_a_grammar_in_the_order_in_which_they_came() -> None:
    timings = RequestTimings(3.0, 4.0, 6.0, 11.0)
    for grammar, adapter in ((3.25, 3.75), (3.75, 3.25)):
        history = ChoiceHistory(ready=grammar, adapters_ready=adapter)
        found = trace(stream((6.1, 1), (11.1, 1), timings=timings, history=history))
        phases = named(ALL, found)
        assert (phases["grammar"], phases["adapter"]) == (
            (0.25, 0.5) if grammar < adapter else (0.5, 0.25)
        )


def test_a_recovery_before_and_after_the_first_token() -> None:
    for first in (0.0, 6.1):
        facts = StreamFacts()
        facts.sent(2.5)
        if first:
            facts.output(ChoiceOutput("r", 0, (1,), scheduled=4.0), first, NO_STATS)
        facts.lost(7.0, "crash")
        facts.sent(8.0)
        # Of the second engine: it was received, scheduled and had its first token there.
        timings = RequestTimings(8.1, 8.2, first or 9.0, 11.0)
        facts.output(ChoiceOutput("r", 0, (1,), scheduled=8.2), 9.0, NO_STATS)
        end = ChoiceOutput("r", 0, (1,), finish_reason=FinishReason.STOP, timings=timings)
        facts.output(end, 11.0, NO_STATS)
        phases = named(ALL, trace(facts))
        if first:
            assert phases["recovery"] == 2.0 and "lost" not in phases
        else:
            assert (phases["lost"], phases["recovery"]) == (4.5, 1.0)
            assert phases["queue"] == 0.2


def test_vectors_have_no_decode() -> None:
    timings = RequestTimings(3.0, 4.0, 0.0, 6.0)
    phases = named(ALL, trace(stream((6.0, 0), timings=timings)))
    assert phases["prefill"] == 2.0 and "decode" not in phases


def test_one_that_ended_at_a_stop_string_has_what_is_known() -> None:
    phases = named(ALL, trace(stream((6.0, 1), (8.0, 1), scheduled=4.0)))
    assert (phases["prefill"], phases["decode"]) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("milestones", "found", "last"),
    [
        (Milestones(0.0), None, "read"),
        (Milestones(0.0, 1.0), None, "model"),
        (Milestones(0.0, 1.0, 2.0), None, "work"),
        (Milestones(0.0, 0.2, 0.5), Trace(), "prepare"),
        (Milestones(0.0, 0.2, 0.5), Trace(began=1.0), "quota"),
        (Milestones(0.0, 0.2, 0.5), Trace(began=1.0, reserved=1.0), "admission"),
        (Milestones(0.0, 0.2, 0.5), trace(), "work"),
        (Milestones(0.0, 0.2, 0.5), trace(StreamFacts()), "queue"),
        (Milestones(0.0, 0.2, 0.5), trace(stream((6.0, 1), scheduled=4.0)), "decode"),
    ],
)
def test_one_that_runs_is_in_its_last_phase(
    milestones: Milestones, found: Trace | None, last: str
) -> None:
    named(milestones, found)
    assert phases_of(milestones, found, 20.0)[-1].name == last


def test_clocks_that_disagree_never_make_a_phase_negative() -> None:
    rng = random.Random(1)
    for _ in range(300):
        times = [rng.uniform(0, 12) for _ in range(8)]
        timings = RequestTimings(times[0], times[1], times[2], times[3])
        found = trace(stream((times[4], 1), (times[5], 1), timings=timings, scheduled=times[6]))
        found.began, found.submitted = times[7], times[2]
        phases = phases_of(ALL, found, 0.0)
        assert all(phase.seconds > 0 for phase in phases)
        named(ALL, found)


def test_gaps_in_percentiles() -> None:
    facts = ChoiceFacts()
    now = 1.0
    for i in range(101):
        now += 0.5 if i == 50 else 0.001 * i
        facts.output(ChoiceOutput("r", 0, (1,)), now, NO_STATS)
    gaps = facts.gaps()
    assert gaps is not None
    assert gaps.gaps == 100 and gaps.longest == pytest.approx(0.5)
    assert gaps.p50 == pytest.approx(0.051, abs=0.002)
    assert [round(g.seconds, 3) for g in sorted(facts.slowest, reverse=True)] == [
        0.5, 0.1, 0.099, 0.098, 0.097,
    ]  # fmt: skip
    assert max(facts.slowest).tokens == 50


def test_a_long_output_keeps_few_numbers() -> None:
    facts = ChoiceFacts()
    count = 5 * MAX_GAPS
    for i in range(count + 1):
        facts.output(
            ChoiceOutput("r", 0, (1,)), 1.0 + i * 0.01 + (1.0 if i > count // 2 else 0.0), NO_STATS
        )
    gaps = facts.gaps()
    assert gaps is not None and len(facts.samples) < MAX_GAPS
    assert gaps.gaps == count and gaps.p99 == pytest.approx(0.01, abs=1e-6)
    assert gaps.longest == pytest.approx(1.01)


def test_what_a_server_answers_itself_after_a_target_failed_is_its_own() -> None:
    timings = RequestTimings(3.0, 4.0, 6.0, 11.0)
    found = trace(stream((6.1, 1), (11.1, 1), timings=timings, scheduled=4.0))
    record = RequestRecord("r", at=0, model="m", generated=2)
    ways = [Way("a", 0.3, ended=0.4, why="it was gone"), Way("here", 0.4)]
    story = Story(record, ALL, found, ways=ways)
    assert "target" not in {phase.name for phase in story.phases(20.0)}
    assert summary(story, 20.0)["first_token_seconds"] == 6.0


def test_phases_of_a_gateway() -> None:
    ways = [
        Way("a", 1.0, ended=2.0, why="no connection"),
        Way("b", 2.5, first=4.0, ended=7.0, why="it was lost"),
        Way("c", 7.5, first=8.0),
    ]
    times = Milestones(arrival=0.0, begun=0.25, ended=12.0)

    def seconds(count: int, now: float = 20.0) -> dict[str, float]:
        phases = phases_of(times, None, now, ways[:count])
        assert {phase.name for phase in phases} <= set(PHASES)
        assert sum(phase.seconds for phase in phases) == pytest.approx(12.0)
        return {phase.name: phase.seconds for phase in phases}

    assert seconds(1) == {"read": 0.25, "route": 0.75, "failed": 11.0}
    assert seconds(2) == {"read": 0.25, "route": 0.75, "failed": 1.5, "target": 1.5, "relay": 8.0}
    whole = phases_of(times, None, 20.0, ways)
    assert [(phase.name, phase.end) for phase in whole][3:] == [
        *(("target", 4.0), ("relay", 7.0), ("recovery", 8.0), ("relay", 12.0)),
    ]
