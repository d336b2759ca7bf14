"""What requests share with one that ended engines."""

from __future__ import annotations

from typing import Any

import msgspec
from helpers.drive import request

from tidemill.contract.program import FreeText, Grammar, OutputProgram
from tidemill.contract.request import AdapterUse, EngineRequest, Pooling
from tidemill.engine.quarantine import QUARANTINE_SECONDS, Quarantine, shared_verdict, traits


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def with_grammar(prompt: list[int], source: str, kind: str = "regex", **fields: Any) -> Any:
    program = OutputProgram((FreeText(until=((5,),)), Grammar(kind, source, "some.field")))
    return msgspec.structs.replace(request("a", prompt), program=program, **fields)


def held(quarantine: Quarantine, *requests: EngineRequest) -> list[bool]:
    return [quarantine.holds(one) is not None for one in requests]


def test_variants_of_a_grammar_are_held_and_nothing_else() -> None:
    quarantine = Quarantine(Clock())
    quarantine.quarantined(with_grammar([1, 2], "a+"))
    variant = with_grammar([3], "a+")
    assert held(quarantine, variant) == [True]
    assert held(quarantine, with_grammar([1, 2], "b+"), request("c", [1, 2])) == [False, False]
    label, name = quarantine.holds(variant) or ("", "")
    assert label == "grammar" and name in shared_verdict((label, name)) and "a+" not in name


def test_the_field_that_a_grammar_came_by_does_not_count() -> None:
    one = OutputProgram((Grammar("regex", "a", "x"),))
    two = OutputProgram((Grammar("regex", "a", "y"),))
    base = request("a", [1])
    assert traits(msgspec.structs.replace(base, program=one)) == traits(
        msgspec.structs.replace(base, program=two)
    )
    assert traits(base) == ()


def test_what_ended_well_is_not_held_but_must_prove_itself_again() -> None:
    quarantine = Quarantine(Clock())
    good, bad = with_grammar([1], "a+"), with_grammar([2], "a+")
    quarantine.ended_well(good)
    quarantine.quarantined(bad)
    assert held(quarantine, good) == [False]
    quarantine.ended_well(good)
    quarantine.quarantined(bad)
    assert held(quarantine, good) == [False]
    quarantine.quarantined(bad)
    assert held(quarantine, good) == [True]


def test_what_is_no_clients_own_takes_two() -> None:
    for shared in (
        {"adapters": (AdapterUse("x", "/x", "d"),)},
        {"pooling": Pooling("mean")},
        {"program": OutputProgram((Grammar("json_object"),))},
    ):
        quarantine = Quarantine(Clock())
        one = msgspec.structs.replace(request("a", [1]), **shared)
        other = msgspec.structs.replace(request("b", [2]), **shared)
        quarantine.quarantined(one)
        assert held(quarantine, other) == [False]
        quarantine.quarantined(one)
        assert held(quarantine, other) == [True]


def test_a_quarantine_passes() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    one = with_grammar([1], "a+")
    quarantine.quarantined(one)
    clock.now = QUARANTINE_SECONDS - 1
    assert held(quarantine, one) == [True]
    clock.now += 2
    assert held(quarantine, one) == [False]
    quarantine.quarantined(one)
    assert held(quarantine, one) == [True]


def test_two_variants_that_end_an_engine_alone_are_one_case() -> None:
    quarantine = Quarantine(Clock())
    one, two = with_grammar([1], "a+"), with_grammar([2], "a+")
    two = msgspec.structs.replace(two, request_id="b")
    other = msgspec.structs.replace(with_grammar([3], "b+"), request_id="c")
    assert not quarantine.ended_alone(one) and not quarantine.ended_alone(one)
    assert not quarantine.ended_alone(other)
    assert quarantine.ended_alone(two)
    quarantine.quarantined(two)
    assert held(quarantine, one, two, other) == [True, True, False]
    quarantine.ended_well(other)
    assert not quarantine.ended_alone(msgspec.structs.replace(other, request_id="d"))
