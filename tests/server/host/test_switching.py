"""What is loaded, evicted, closed or refused, from facts alone."""

from __future__ import annotations

import random

import pytest

from tidemill.server.host.switching import (
    Close,
    Evict,
    Fact,
    Load,
    Need,
    Refuse,
    Reopen,
    Wait,
    next_action,
    shares,
)

SMALL = Need(fixed=10, kv_least=2, kv_most=20)


def _held(name: str, **changes: object) -> Fact:
    return Fact(name, SMALL, held=True, **changes)  # type: ignore[arg-type]


def _wanted(name: str, since: float = 0.0, need: Need | None = SMALL) -> Fact:
    return Fact(name, need, waiting_since=since)


def test_what_fits_is_loaded_first_come_first_served() -> None:
    facts = [_wanted("b", 2.0), _wanted("a", 1.0), _held("c")]
    assert next_action(facts, 36, 5.0) == Load("a")
    assert next_action(facts, None, 5.0) == Load("a")
    assert next_action([_held("c")], 36, 5.0) == Wait()


def test_the_least_recently_used_idle_model_goes() -> None:
    facts = [_held("a", last_used=3.0), _held("b", last_used=1.0), _wanted("c")]
    assert next_action(facts, 24, 5.0) == Evict("b")
    pinned = [_held("a", last_used=3.0), _held("b", last_used=1.0, pinned=True), _wanted("c")]
    assert next_action(pinned, 24, 5.0) == Evict("a")


def test_one_that_is_large_enough_goes_rather_than_several() -> None:
    large = Fact("large", Need(30, 2, 9), held=True, last_used=9.0)
    facts = [_held("a", last_used=1.0), large, _wanted("c", need=Need(30, 2, 9))]
    assert next_action(facts, 44, 10.0) == Evict("large")


def test_a_model_with_work_is_closed_after_its_turn_and_never_evicted() -> None:
    busy = [_held("a", busy=1, opened=0.0), _held("b", busy=3, opened=1.0), _wanted("c", 1.5)]
    assert next_action(busy, 24, 1.9) == Wait(2.0)
    assert next_action(busy, 24, 2.0) == Close("a")
    closed = [_held("a", busy=1, closed=True), *busy[1:]]
    assert next_action(closed, 24, 9.0) == Wait()
    ended = [_held("a", closed=True), *busy[1:]]
    assert next_action(ended, 24, 9.0) == Evict("a")


def test_a_closed_model_is_opened_when_nobody_waits_any_more() -> None:
    assert next_action([_held("a", busy=1, closed=True)], 24, 0.0) == Reopen("a")


def test_what_never_fits_is_refused_with_numbers() -> None:
    facts = [_held("a", pinned=True, busy=1), _held("b", busy=1), _wanted("c", need=Need(20, 2, 9))]
    assert next_action(facts, 30, 0.0) == Refuse("c", 22, 18)


def test_shares_of_the_memory_for_caches() -> None:
    needs = [("a", Need(10, 2, 42)), ("b", Need(10, 2, 22))]
    assert shares(needs, 24) == {"a": 2, "b": 2}
    assert shares(needs, 54) == {"a": 22, "b": 12}
    assert shares(needs, 1000) == {"a": 42, "b": 22}


@pytest.mark.parametrize("seed", range(40))
def test_no_model_waits_for_ever_and_none_with_work_is_evicted(seed: int) -> None:
    """Random arrivals in simulated time: whoever waits is loaded within a bounded time."""
    rng = random.Random(seed)
    names = "abcde"
    needs = {n: Need(rng.randrange(5, 20), rng.randrange(1, 5), 30) for n in names}
    budget = max(n.least for n in needs.values()) + rng.randrange(20)
    held: dict[str, float] = {}  # name -> opened
    closed: set[str] = set()
    busy: dict[str, list[float]] = {n: [] for n in names}  # ends of requests
    waiting: dict[str, list[float]] = {n: [] for n in names}
    used = dict.fromkeys(names, 0.0)
    now, longest = 0.0, 0.0
    while now < 300:
        now += 0.1
        for n in names:
            busy[n] = [end for end in busy[n] if end > now]
            # The first one is asked for all the time.
            if now < 250 and rng.random() < (0.9 if n == "a" else 0.02):
                if n in held and n not in closed:
                    busy[n].append(now + rng.uniform(0.1, 3.0))
                    used[n] = now
                else:
                    waiting[n].append(now)
        for _ in range(20):
            facts = [
                Fact(
                    n, needs[n], held=n in held, busy=len(busy[n]),
                    waiting_since=min(waiting[n], default=None), closed=n in closed,
                    opened=held.get(n, 0.0), last_used=used[n],
                )
                for n in names
            ]  # fmt: skip
            action = next_action(facts, budget, now)
            if isinstance(action, Wait):
                break
            assert not isinstance(action, Refuse)
            n = action.name
            if isinstance(action, Evict):
                assert not busy[n], "a model with work was evicted"
                del held[n]
                closed.discard(n)
            elif isinstance(action, Close):
                closed.add(n)
            else:
                closed.discard(n)
                held[n] = now
                assert sum(needs[h].least for h in held) <= budget
                longest = max(longest, *(now - at for at in waiting[n]), 0.0)
                busy[n] += [now + rng.uniform(0.1, 3.0) for _ in waiting[n]]
                waiting[n], used[n] = [], now
        else:
            raise AssertionError("it does not come to rest")
    assert not any(waiting.values())
    # Every other model may have a turn and its rest before.
    assert longest < len(names) * (2.0 + 3.0 + 0.3)
