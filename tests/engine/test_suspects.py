"""From deaths to verdicts, and what the flight log says of them."""

from __future__ import annotations

import os

import msgspec
import pytest
from helpers.drive import request

from tidemill.contract.request import AdapterUse
from tidemill.engine.flightlog import FlightLog, request_key
from tidemill.engine.suspects import MAX_QUARANTINED, SuspectTracker, fingerprint


def test_one_death_makes_nobody_a_suspect() -> None:
    docket = SuspectTracker()
    docket.death(["a", "b", "c"])
    assert docket.suspects() == []
    docket.death(["c", "d", "b"])
    assert docket.suspects() == ["b", "c"]


def test_who_gets_on_alone_is_cleared() -> None:
    docket = SuspectTracker()
    for _ in range(2):
        docket.death(["a", "b"])
    docket.clear("a")
    assert docket.suspects() == ["b"]
    docket.death(["a", "b"])
    assert docket.suspects() == ["b"], "what was before the acquittal counts no more"


def test_two_deaths_alone_without_a_token_between_convict() -> None:
    docket = SuspectTracker()
    assert not docket.record_isolated_crash("a", 5)
    assert not docket.record_isolated_crash("a", 6), "it got on in between"
    assert docket.record_isolated_crash("a", 6)
    assert not docket.record_isolated_crash("b", 0)
    docket.clear("b")
    assert not docket.record_isolated_crash("b", 0)


def test_who_ended_an_engine_alone_is_tried_again_after_the_others() -> None:
    docket = SuspectTracker()
    for _ in range(2):
        docket.death(["a", "b", "c"])
    assert not docket.record_isolated_crash("a", 0)
    assert docket.suspects() == ["b", "c", "a"]
    docket.clear("b")
    assert not docket.record_isolated_crash("c", 0)
    assert docket.suspects() == ["a", "c"]
    assert docket.record_isolated_crash("a", 0)


def test_many_that_are_guilty_are_convicted_one_after_the_other() -> None:
    docket, names, deaths = SuspectTracker(), [f"r{i}" for i in range(12)], 0
    for _ in range(2):
        docket.death(names)
    longest, since = 0, 0
    while suspects := docket.suspects():
        deaths, since = deaths + 1, since + 1
        if docket.record_isolated_crash(suspects[0], 0):
            docket.quarantine(request(suspects[0], [deaths]))
            longest, since = max(longest, since), 0
    assert deaths == 24 and longest <= 4, "deaths in a row that convict nobody"


def test_who_has_ended_is_forgotten() -> None:
    docket = SuspectTracker()
    docket.death(["a", "b"])
    docket.retain({"b"})
    docket.death(["a", "b"])
    assert docket.suspects() == ["b"]


def test_who_was_never_computed_is_suspected_once_more_engines_had_it() -> None:
    docket = SuspectTracker()
    for _ in range(3):
        docket.death(["a"], ["a", "b"])
        docket.clear("a")  # it got on alone
    assert docket.suspects() == [] and not docket.suspected_in_flight("b")
    docket.death([], ["a", "b"])
    assert docket.suspects() == ["b"] and docket.suspected_in_flight("b")
    docket.retain({"a"})
    assert docket.suspects() == []


def test_a_conviction_explains_the_deaths_of_those_in_flight() -> None:
    docket = SuspectTracker()
    for _ in range(3):
        docket.death([], ["a", "b"])
    docket.quarantine(request("a", [1]))
    docket.death([], ["b"])
    assert docket.suspects() == []


def test_convicts_are_known_by_prompt_and_settings() -> None:
    docket = SuspectTracker()
    one = request("a", [1, 2, 3], temperature=0.5, seed=4)
    mark = docket.quarantine(one)
    again = request("b", [1, 2, 3], temperature=0.5, seed=9)
    assert docket.quarantined(again) == mark == fingerprint(again)
    assert docket.quarantined(request("c", [1, 2, 4], temperature=0.5)) is None
    assert docket.quarantined(request("c", [1, 2, 3], temperature=0.6)) is None
    for i in range(MAX_QUARANTINED):
        docket.quarantine(request("x", [i + 10]))
    assert docket.quarantined(one) is None, "memory of convicts is bounded"


@pytest.fixture
def logs() -> tuple[FlightLog, FlightLog]:
    """The supervisor's view and the engine's."""
    ours = FlightLog.create(4)
    return ours, FlightLog(os.dup(ours.descriptor), 4)


def test_the_flight_log_names_who_was_computed(logs: tuple[FlightLog, FlightLog]) -> None:
    ours, theirs = logs
    assert ours.suspects() == set()
    theirs.beat(7)
    theirs.enter(1, {11, 12})
    theirs.leave(1)
    theirs.enter(2, {12, 13})
    assert ours.pulse == 7
    assert ours.suspects() == {11, 12, 13}, "outputs are told while the next step computes"
    theirs.enter(3, {14})
    assert ours.suspects() == {12, 13, 14}, "two steps may be in flight"
    theirs.leave(2)
    theirs.leave(3)
    assert ours.suspects() == {14}, "what follows the last step can fail as well"
    theirs.set_preparing({15})
    assert ours.suspects() == {14, 15}
    theirs.set_preparing(set())
    assert ours.suspects() == {14}
    theirs.enter(4, range(100, 110))
    assert len(ours.suspects() - {14}) == 4, "more rows than there is room for do no harm"
    ours.clear()
    assert ours.suspects() == set() and ours.pulse == 0
    theirs.close()
    ours.close()


def test_keys_fit_their_words() -> None:
    keys = {request_key(f"req-{i}") for i in range(1000)} | {request_key("\ud800")}
    assert len(keys) == 1001 and all(0 < key < 2**63 for key in keys)


def test_the_fingerprint_says_nothing_of_the_prompt() -> None:
    mark = fingerprint(request("a", [1, 2, 3]))
    other = msgspec.structs.replace(request("a", [1, 2, 3]), adapters=(AdapterUse("x", "/x", "d"),))
    assert len(mark) == 24 and int(mark, 16) >= 0 and mark != fingerprint(other)
