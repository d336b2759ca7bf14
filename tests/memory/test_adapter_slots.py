"""Which adapters are in memory: budget, order of use, pins, and room for those that wait."""

from __future__ import annotations

import random

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.memory.adapter_slots import AdapterSlots


def load(slots: AdapterSlots, key: str, nbytes: int = 10, *, pinned: bool = False) -> list[int]:
    """Load without a lasting reference; returns what was unloaded for it."""
    leaving = slots.make_room(nbytes)
    assert leaving is not None
    slots.add(key, nbytes, pinned=pinned)
    assert slots.find(key) is None, "it is not loaded yet"
    assert slots.loaded(key, key, nbytes)
    slots.release(key)
    return leaving


def test_the_least_recently_used_leaves_first() -> None:
    slots = AdapterSlots(30, 8)
    for key in "abc":
        assert load(slots, key) == []
    assert slots.find("a") == 1
    slots.release("a")
    assert load(slots, "d") == [2]  # b
    assert slots.find("b") is None and slots.find("c") == 3


def test_pinned_and_referenced_ones_stay() -> None:
    slots = AdapterSlots(30, 8)
    load(slots, "a", pinned=True)
    load(slots, "b")
    load(slots, "c")
    slots.find("b")
    assert load(slots, "d") == [3]  # c
    with pytest.raises(TidemillError, match="pinned ones take") as caught:
        slots.make_room(21)
    assert caught.value.kind is ErrorKind.RESOURCE and caught.value.param == "adapter_memory"


def test_slots_run_out_as_memory_does() -> None:
    slots = AdapterSlots(1000, 2)
    load(slots, "a")
    load(slots, "b")
    assert load(slots, "c") == [1]
    assert len(slots) == 2


def test_who_waits_for_room_gets_it_although_others_go_on_asking() -> None:
    slots = AdapterSlots(20, 8)
    for key in "ab":
        load(slots, key)
        slots.find(key)
    assert slots.make_room(10) is None
    assert slots.find("a") is None, "the one that must leave takes no new references"
    assert slots.find("b") == 2
    slots.release("a")
    assert slots.make_room(10) == [1]
    assert slots.find("b") == 2, "and the others do"


def test_what_was_to_leave_stays_when_nobody_waits() -> None:
    slots = AdapterSlots(10, 8)
    load(slots, "a")
    slots.find("a")
    assert slots.make_room(10) is None and slots.find("a") is None
    slots.stay()
    assert slots.find("a") == 1


def test_a_dropped_one_leaves_with_its_last_reference() -> None:
    slots = AdapterSlots(30, 8)
    load(slots, "d1", pinned=True)
    load(slots, "d2")
    slots.find("d1")
    assert slots.drop("d1") == [] and slots.drop("d2") == [2]
    slots.release("d1")
    assert slots.make_room(30) == [1]


def test_one_that_is_larger_than_thought_finds_its_place_or_none() -> None:
    slots = AdapterSlots(30, 8)
    load(slots, "a")
    assert slots.make_room(0) == []
    slots.add("?1", 0)
    assert slots.loaded("?1", "b", 25)
    slots.release("b")
    assert slots.shrink(25) == [1] and slots.find("b") is not None
    slots.add("?2", 0)
    assert not slots.loaded("?2", "b", 25), "it is in memory under that key"
    with pytest.raises(TidemillError, match="adapter-memory"):
        slots.shrink(31)


def test_any_order_of_calls_keeps_the_budget() -> None:
    rng = random.Random(0)
    slots, held = AdapterSlots(100, 6), list[str]()
    for _ in range(5000):
        key = f"k{rng.randrange(20)}"
        if held and rng.random() < 0.5:
            slots.release(held.pop(rng.randrange(len(held))))
        elif slots.find(key) is not None:
            held.append(key)
        elif key not in slots and slots.make_room(size := rng.randrange(5, 60)) is not None:
            slots.add(key, size)
            slots.loaded(key, key, size)
            held.append(key)
        assert slots.nbytes <= 100 and len(slots) <= 6
        assert slots.references == len(held)
