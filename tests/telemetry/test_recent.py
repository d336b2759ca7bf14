"""The ring of the latest requests."""

from __future__ import annotations

from tidemill.telemetry.phases import Milestones
from tidemill.telemetry.recent import Recent, Story
from tidemill.telemetry.record import RequestRecord
from tidemill.telemetry.trace import Trace


def story(name: str, answer: str = "") -> Story:
    return Story(RequestRecord(name, 0), Milestones(0.0, ended=1.0), Trace(answer))


def test_it_is_bounded_and_forgets_the_oldest_first() -> None:
    recent = Recent(3)
    for i in range(10):
        recent.begin(i, lambda: story("open"))
        recent.end(i, story(f"r{i}", f"a{i}"))
    assert [s.record.id for s in recent] == ["r9", "r8", "r7"]
    assert not any(recent.find(f"{kind}{i}") for kind in "ra" for i in range(7))
    assert recent.running() == []


def test_equal_ids_are_the_latest_first_and_forgotten_one_by_one() -> None:
    recent = Recent(2)
    first, second = story("same"), story("same")
    recent.end(0, first)
    recent.end(0, second)
    assert recent.find("same") == [second, first]
    recent.end(0, story("other"))
    assert recent.find("same") == [second]


def test_an_answer_s_id_finds_it_too() -> None:
    recent = Recent(2)
    recent.end(0, story("r", "chatcmpl-1"))
    assert [s.record.id for s in recent.find("chatcmpl-1")] == ["r"]


def test_one_that_runs_is_asked_when_somebody_asks() -> None:
    recent = Recent(2)
    recent.begin(1, lambda: Story(RequestRecord("now", 0), Milestones(0.0), None))
    recent.begin(2, lambda: None)
    assert [s.record.id for s in recent.running()] == ["now"]
    assert recent.find("now")[0].running
    recent.end(1, None)
    assert recent.find("now") == []
