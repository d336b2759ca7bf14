"""The search for the cheapest fleet: ten cases whose best answer is known from trying all."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.simulated_costs import costs

from tidemill.base.errors import TidemillError
from tidemill.bench.options import BenchOptions
from tidemill.simulate.run import FleetOptions
from tidemill.simulate.search import Candidate, Found, Search, simulate_fleet

QUIET = FleetOptions(noise=False)
MOST = 6


def kind(name: str, price: float, speed: float = 1.0, **sizes: int) -> Candidate:
    return Candidate(name, costs(), price, replace(QUIET, speed=speed, sizes=sizes))


LOAD = BenchOptions(
    "", rates=(8.0,), requests=60, input_tokens=200, output_tokens=32,
    objectives={"ttft": 400.0, "tpot": 60.0}, target=0.95,
)  # fmt: skip

# Name -> what differs of LOAD, and the candidates.
CASES: dict[str, tuple[dict[str, Any], tuple[Candidate, ...]]] = {
    "one is enough": ({"rates": (0.5,)}, (kind("a", 1.0),)),
    "several of one kind": ({"rates": (16.0,)}, (kind("a", 1.0),)),
    "fewer fast ones are cheaper": (
        {"rates": (16.0,)}, (kind("slow", 1.0), kind("fast", 1.6, speed=3.0)),
    ),
    "more slow ones are cheaper": (
        {"rates": (12.0,)}, (kind("slow", 1.0), kind("fast", 4.0, speed=1.5)),
    ),
    "a large one where a small one does": (
        {"rates": (0.5,)}, (kind("small", 1.0), kind("large", 3.0, speed=4.0)),
    ),
    "only the fast one meets the objective": (
        {"objectives": {"tpot": 9.0}, "rates": (2.0,)},
        (kind("slow", 0.1), kind("fast", 5.0, speed=3.0)),
    ),
    "a small cache limits": (
        {"input_tokens": 500}, (kind("little", 0.9, num_blocks=48), kind("much", 1.0)),
    ),
    "a small batch limits": (
        {"rates": (12.0,)}, (kind("narrow", 0.9, max_num_seqs=2), kind("wide", 1.0)),
    ),
    "nothing suffices": ({"objectives": {"ttft": 20.0}}, (kind("a", 1.0), kind("b", 2.0, 1.2))),
    "three kinds, a burst": (
        {"arrivals": "gamma", "burstiness": 0.2},
        (kind("a", 1.0), kind("b", 1.9, speed=2.0), kind("c", 2.5, speed=2.6)),
    ),
}  # fmt: skip


def load(**how: Any) -> BenchOptions:
    return replace(LOAD, **how)


@cache
def found_for(name: str) -> Found:
    how, candidates = CASES[name]
    return Search(load(**how), candidates, most=MOST).run(headroom=False)


@pytest.mark.parametrize("name", CASES)
def test_the_best_is_that_of_trying_all(name: str) -> None:
    how, candidates = CASES[name]
    options = load(**how)
    best: tuple[float, str, int] | None = None
    for candidate in candidates:
        for engines in range(1, MOST + 1):
            price = engines * candidate.price
            if best is not None and price >= best[0]:
                break
            if simulate_fleet(options, candidate, engines, early=False).passed:
                best = price, candidate.name, engines
                break
    found = found_for(name).best
    assert best == (found and (found.price, found.candidate.name, found.engines))


def test_constructed_cases_have_the_answers_that_they_were_made_for() -> None:
    answers = {
        name: found.best and found.best.candidate.name
        for name in CASES
        for found in [found_for(name)]
    }
    assert answers["fewer fast ones are cheaper"] == "fast"
    assert answers["more slow ones are cheaper"] == "slow"
    assert answers["a large one where a small one does"] == "small"
    assert answers["only the fast one meets the objective"] == "fast"
    assert answers["a small cache limits"] == "much"
    assert answers["a small batch limits"] == "wide"
    assert answers["nothing suffices"] is None


def test_what_limits_is_said() -> None:
    narrow = simulate_fleet(load(rates=(12.0,)), kind("narrow", 1.0, max_num_seqs=2), 1)
    little = simulate_fleet(
        load(rates=(4.0,), input_tokens=500), kind("little", 1.0, num_blocks=20), 1
    )
    slow = simulate_fleet(load(rates=(30.0,)), kind("slow", 1.0), 1)
    assert [probe.limit for probe in (narrow, little, slow)] == ["batch", "memory", "computing"]
    assert not (narrow.passed or little.passed or slow.passed) and "ttft" in narrow.misses
    out = found_for("only the fast one meets the objective").out
    assert "alone" in out["slow"]
    nothing = found_for("nothing suffices")
    assert len(nothing.probes) == 0 and "No candidate" in nothing.sentences()[0]


def test_failed_simulations_end_early() -> None:
    options = load(rates=(40.0,), requests=400)
    early = simulate_fleet(options, kind("a", 1.0), 1)
    whole = simulate_fleet(options, kind("a", 1.0), 1, early=False)
    assert early.point.requests < 0.7 * whole.point.requests and not early.passed


def test_a_budget_bounds_the_fleet() -> None:
    how, candidates = CASES["several of one kind"]
    best = found_for("several of one kind").best
    assert best is not None and best.engines > 1
    poor = Search(load(**how), candidates, budget=best.price - 0.5, most=MOST).run()
    assert poor.best is None and "do not suffice" in poor.out["a"]
    rich = Search(load(**how), candidates, budget=best.price, most=MOST).run(headroom=False)
    assert rich.best is not None and rich.best.engines == best.engines


def test_what_one_more_engine_carries() -> None:
    found = Search(load(rates=(12.0,)), (kind("a", 1.0),), most=MOST).run()
    assert found.best is not None and found.headroom is not None
    now, more = found.headroom
    assert now >= 1.0 and more > 1.1 * now
    # The KV cache with which it still suffices, within the step of the search.
    best, tokens = found.best, found.cache
    assert tokens is not None and tokens < best.candidate.cache_tokens
    assert f"{tokens:,} suffice" in " ".join(found.sentences())
    for share, suffices in ((1.0, True), (1 / 1.25, False)):
        kept = best.candidate.with_cache(share * tokens / best.candidate.cache_tokens)
        assert simulate_fleet(load(rates=(12.0,)), kept, best.engines).passed == suffices
    assert any("one more" in sentence for sentence in found.sentences())
    found.headroom = (8.0, 8.0)  # where the search for it ends
    assert any("8.00 times the load; more was not" in sentence for sentence in found.sentences())


def test_a_trace_is_served(tmp_path: Path) -> None:
    rows = [{"timestamp": i / 6, "input": 200, "output": 32} for i in range(60)]
    (path := tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = Search(load(rates=(), trace=path), (kind("a", 1.0),), most=MOST).run(headroom=False)
    assert found.best is not None and found.best.point.completed == 60


@pytest.mark.parametrize(
    ("how", "param"),
    [
        ({"objectives": {}}, "objectives"),
        ({"rates": (1.0, 2.0)}, "rates"),
        ({"rates": ()}, "rates"),
    ],
)
def test_loads_that_cannot_be_searched_for(how: dict[str, Any], param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        Search(load(**how), (kind("a", 1.0),))
    assert caught.value.param == param


def test_free_engines_are_refused() -> None:
    with pytest.raises(TidemillError, match="price"):
        Search(LOAD, (kind("a", 0.0),))
