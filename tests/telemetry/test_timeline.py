"""Pictures of an explanation."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tidemill.contract.history import (
    ChoiceHistory,
    DrafterHistory,
    Miss,
    Preemption,
    PrefixLookup,
    PromptChunk,
)
from tidemill.contract.quotas import QuotaView
from tidemill.contract.request import ChoiceOutput, FinishReason, RequestTimings
from tidemill.contract.wire import EngineStats
from tidemill.telemetry.explain import explanation
from tidemill.telemetry.facts import StreamFacts
from tidemill.telemetry.phases import Milestones
from tidemill.telemetry.recent import Story
from tidemill.telemetry.record import RequestRecord
from tidemill.telemetry.timeline import drawn, lanes_of, shown_seconds, svg, text
from tidemill.telemetry.trace import AdmissionView, Trace


def story(name: str = "r<1>", *, miss: Miss = Miss.PARTED, later: float = 0.0) -> Story:
    """A request with something of everything; its prompt is computed from 4.0 + `later` on."""
    history = ChoiceHistory(
        ready=3.5,
        mask_seconds=0.01,
        prefix=PrefixLookup(6, miss, 6, 2),
        chunks=(
            PromptChunk(4.0 + later, 1, 6, 94, "tokens", 2),
            PromptChunk(4.5 + later, 2, 100, 20, "prompt", 2),
            PromptChunk(8.0 + later, 9, 0, 122, "prompt"),
        ),
        preemptions=(Preemption(7.0 + later, "growth", 122, "other"),),
        drafters=(DrafterHistory("lookup", 5, 3),),
    )
    facts = StreamFacts()
    facts.sent(3.0)
    stats = EngineStats(last_step_rows=3, last_step_tokens=50, steps=4)
    facts.output(ChoiceOutput("r", 0, (1,)), 6.0, stats)
    facts.output(ChoiceOutput("r", 0, (1, 2), drafted=5, drafts_accepted=3), 6.2, stats)
    timings = RequestTimings(3.0, 4.0, 6.0, 11.0)
    end = ChoiceOutput(
        "r", 0, (1,), finish_reason=FinishReason.STOP, timings=timings, history=history
    )
    facts.output(end, 11.0, stats)
    trace = Trace("a", ("tone",), 1.0, 1.5, 2.0, 2.5, streams=[facts])
    trace.admission = AdmissionView("admitted", 120, 0, 10, 4000, 9000, 100, 3000)
    trace.quota = (QuotaView("key", "me", "tokens_per_day", "tokens", 1000, 130, 870, False),)
    record = RequestRecord(name, 0, prompt=120, cached=6, generated=4, status=200, model="m")
    return Story(record, Milestones(0.0, 0.25, 0.5, 12.0), trace)


def document(**more: Any) -> dict[str, Any]:
    return explanation(story(), 12.0, (), **more)


def test_bars_are_where_their_times_are() -> None:
    lanes = {lane.name: lane for lane in lanes_of(document())}
    assert len(lanes["decode"].bars) == 2  # before and after the preemption
    assert lanes["preempted"].seconds == pytest.approx(1.0)
    assert drawn(lanes["decode"].bars, 12.0, 12) == " " * 6 + "█ ███"
    assert drawn(lanes["read"].bars, 12.0, 12) == "▎"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.00001, "10 µs"), (0.0123, "12.3 ms"), (0.9999, "999.9 ms"), (4.56, "4.56 s")],
)
def test_times_as_people_read_them(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown


def test_the_text_says_everything() -> None:
    shown = text(document())
    for part in (
        "adapter tone",
        "Cached tokens: 6: the prompt goes on differently",
        "Preempted at 7.00 s for 1.00 s: an older request",
        "Speculation: 3 of 5 drafts became tokens (lookup 3 of 5)",
        "Limit of key me: tokens_per_day took 130 of 1000, 870 remain",
        "waiting 4000, of at most 9000, ahead of it 3000",
        "Grammar: 500.0 ms to compile",
        "It was preempted: an older request",
    ):
        assert part in shown, shown


def test_the_picture_is_well_formed_and_escaped() -> None:
    root = ET.fromstring(svg(document()))
    texts = [element.text or "" for element in root.iter()]
    assert any("r<1>" in one for one in texts)
    assert {"read", "queue", "prefill", "decode", "preempted"} <= set(texts)
    assert any(one.startswith("94 tokens from 6") for one in texts)


def test_what_shared_a_slow_gap_is_named() -> None:
    # Another request's prompt was computed while this one waited for a token, from 9.0 to 11.0.
    other = story("neighbour", later=5.0)
    found = explanation(story(), 12.0, [other])
    [gap, *_] = found["prompts"][0]["choices"][0]["decode"]["slowest"]
    assert gap["seconds"] == 4.8 and gap["cause"] == "preempted"
    assert [one["id"] for one in gap["prompts"]] == ["neighbour", "neighbour"]


@pytest.mark.parametrize("miss", [Miss.OTHER_SALT, Miss.IN_FLIGHT])
def test_who_may_not_know_of_others_learns_nothing_of_them(miss: Miss) -> None:
    one = story(miss=miss)
    found = explanation(one, 12.0, [story("neighbour", later=5.0)], whole=False)
    assert found["prompts"][0]["cache"]["miss"] == Miss.NEW
    [preemption] = found["prompts"][0]["choices"][0]["preemptions"]
    assert preemption["by"] is None
    assert "waiting" not in found["admission"] and "ahead" not in found["admission"]
    assert all(
        "prompts" not in gap for gap in found["prompts"][0]["choices"][0]["decode"]["slowest"]
    )
    shown = text(found)
    assert "neighbour" not in shown and "tenant" not in shown.replace("a tenant with less", "")
    assert "3000" not in shown and "computing the same" not in shown
