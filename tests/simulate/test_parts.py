"""Adapters, tiers below the cache and blocks of other engines in simulated time."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.simulated_costs import STEP, costs

from tidemill.base.errors import TidemillError
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import BenchReport
from tidemill.contract.moves import Tier
from tidemill.memory.tiers import LOAD_SECONDS, PEER_SECONDS
from tidemill.simulate.adapters import AdapterSizes
from tidemill.simulate.costs import Work
from tidemill.simulate.run import FleetOptions, simulate, with_adapters
from tidemill.simulate.tiers import BANDWIDTH, TierSizes

MIB = 1 << 20
BLOCK = 32 * 28 * 1024  # bytes of a block of 32 tokens
KNOWN = costs(weight_bytes=600 * MIB, kv_bytes_per_token=BLOCK // 32)
NAMES = tuple(f"lora-{i}" for i in range(6))


def simulated(fleet: FleetOptions, sizes: dict[str, Any] | None = None, **how: Any) -> BenchReport:
    known = costs(weight_bytes=600 * MIB, kv_bytes_per_token=BLOCK // 32, **(sizes or {}))
    options = BenchOptions("", **{"warmup": 0, "output_tokens": 2, **how})
    return simulate(options, known, fleet)


def first_tokens(report: BenchReport) -> float:
    (point,) = report.points
    assert not point.errors
    return point.latencies["ttft"]["mean"] / 1000


# -- adapters --------------------------------------------------------------------------------------


def with_room(count: int) -> FleetOptions:
    sizes = AdapterSizes(nbytes=20 * MIB, memory=count * 20 * MIB, bandwidth=100e6)
    return FleetOptions(noise=False, adapters=sizes)


def test_a_step_takes_longer_by_the_bytes_of_its_adapters() -> None:
    step = with_adapters(KNOWN).step
    one = step.of(Work(4, 400, 400, 4, 4, 20 * MIB)) - step.of(Work(4, 400, 400, 4, 4))
    assert one == pytest.approx(STEP.of_tokens(1) * 20 / 600, rel=1e-6)
    measured = costs(weight_bytes=600 * MIB)
    assert with_adapters(measured).notes and not measured.notes


@pytest.mark.parametrize(("room", "loads"), [(6, 6), (3, 24)])
def test_requests_wait_for_adapters_that_are_not_in_memory(room: int, loads: int) -> None:
    """One after another, so that with too little room the one used least recently is the next one
    that is asked for."""
    how: dict[str, Any] = {"concurrency": (1,), "requests": 24, "input_tokens": 100}
    plain = simulated(with_room(room), **how)
    order = iter(NAMES * 4)
    patched = pytest.MonkeyPatch()
    patched.setattr("tidemill.bench.workload._Names.draw", lambda self: next(order))
    with patched.context():
        report = simulated(with_room(room), models=NAMES, **how)
        patched.undo()
    reading = 20 * MIB / 100e6
    byte = STEP.of_tokens(1) / (600 * MIB) * 20 * MIB
    # A loaded adapter is taken up by a step of the loop, like a request.
    more = 24 * (first_tokens(report) - first_tokens(plain))
    assert more == pytest.approx(loads * reading + 24 * byte, rel=0.02)


def test_a_name_drawn_often_stays_in_memory() -> None:
    how: dict[str, Any] = {"rates": (2.0,), "requests": 200, "models": NAMES, "input_tokens": 64}
    even, skewed = (
        first_tokens(simulated(with_room(3), model_skew=skew, **how)) for skew in (0.0, 3.0)
    )
    assert skewed < 0.5 * even


def test_prompts_of_different_adapters_share_nothing() -> None:
    how: dict[str, Any] = {"concurrency": (1,), "requests": 40, "shared_prefix": 160}
    (alone,) = simulated(with_room(6), **how).points
    (apart,) = simulated(with_room(6), models=NAMES, **how).points
    assert alone.cached_tokens == 39 * 160 and apart.cached_tokens == 34 * 160


# -- tiers -----------------------------------------------------------------------------------------

# Six prompts of 800 tokens in turns, and a cache for two.
TURNS: dict[str, Any] = {
    "concurrency": (1,), "requests": 60, "input_tokens": 820, "shared_prefix": 800,
    "prefix_groups": 6,
}  # fmt: skip
SMALL = {"num_blocks": 56}


def tiered(tiers: TierSizes | None, engines: int = 1, **more: Any) -> FleetOptions:
    return FleetOptions(engines, noise=False, tiers=tiers, **more)


@pytest.mark.parametrize("tier", [TierSizes(ram=64 * BLOCK * 6), TierSizes(disk=64 * BLOCK * 6)])
def test_what_left_the_cache_is_brought_rather_than_computed(tier: TierSizes) -> None:
    (without,) = simulated(tiered(None), SMALL, **TURNS).points
    report = simulated(tiered(tier), SMALL, **TURNS)
    (point,) = report.points
    # Each prefix is computed once; the last of its blocks may not have been saved in time.
    assert without.cached_tokens < 0.5 * point.cached_tokens
    assert point.cached_tokens >= 54 * 768
    assert any("brought from" in note for note in report.notes)
    assert first_tokens(report) < 0.6 * without.latencies["ttft"]["mean"] / 1000


def test_bringing_takes_what_the_tier_takes() -> None:
    """Two prompts in turns, of which the cache holds one: the first token comes after the blocks
    and the rest of the prompt."""
    how = {**TURNS, "requests": 40, "prefix_groups": 2}
    means = []
    for bandwidth in (1e9, 5e8):
        tiers = TierSizes(disk=1 << 30, bandwidth={**BANDWIDTH, Tier.DISK: bandwidth})
        report = simulated(tiered(tiers), {"num_blocks": 30}, **how)
        (brought,) = (note for note in report.notes if "brought" in note)
        means.append((first_tokens(report), int(brought.split()[0].replace(",", "")) / 32 / 40))
    (fast, blocks), (slow, same) = means
    assert blocks == same > 5
    assert slow - fast == pytest.approx(blocks * BLOCK * (1 / 5e8 - 1 / 1e9), rel=0.05)


def test_a_tier_that_is_too_slow_is_not_asked() -> None:
    slow = TierSizes(disk=1 << 30, bandwidth={**BANDWIDTH, Tier.DISK: 1e6})
    report = simulated(tiered(slow), SMALL, **TURNS)
    (without,) = simulated(tiered(None), SMALL, **TURNS).points
    (point,) = report.points
    # The first loads tell how slow it is.
    assert point.cached_tokens < 1.5 * without.cached_tokens


def test_engines_bring_blocks_from_one_another() -> None:
    """Sent in turns, so that every engine meets each prefix after another one has computed it."""
    how = {**TURNS, "requests": 40, "prefix_groups": 1}
    (apart,) = simulated(tiered(None, 4, policy="round-robin"), **how).points
    report = simulated(tiered(TierSizes(peers=True), 4, policy="round-robin"), **how)
    (point,) = report.points
    assert apart.cached_tokens == 36 * 800
    assert point.cached_tokens == 39 * 800
    assert f"{3 * 800:,} tokens were brought from other engines" in " ".join(report.notes)
    # Three of forty wait for 25 blocks instead of computing them.
    computing = STEP.of(Work(512, 512 * 256, 512, 0, 1)) + STEP.of(Work(288, 2e5, 800, 0, 1))
    bringing = LOAD_SECONDS + PEER_SECONDS + 25 * BLOCK / BANDWIDTH[Tier.PEER]
    saved = 40 * (apart.latencies["ttft"]["mean"] / 1000 - first_tokens(report))
    assert saved == pytest.approx(3 * (computing - bringing), rel=0.15)


@pytest.mark.parametrize(
    ("fleet", "how", "says"),
    [
        (FleetOptions(), {"models": ("small", *NAMES)}, "lora-0.*adapter-size"),
        (FleetOptions(adapters=AdapterSizes(2, 1, 1e9)), {}, "not even one adapter"),
        (FleetOptions(adapters=AdapterSizes(0, 1, 1e9)), {}, "above 0"),
        (FleetOptions(tiers=TierSizes(ram=100)), {}, "not even one block"),
        (FleetOptions(engines=10**8), {}, "engines must be from 1 to"),
        (FleetOptions(draft_ms=1.0), {}, "without acceptance"),
        (FleetOptions(tiers=TierSizes(peers=True)), {}, "several engines"),
        (FleetOptions(tiers=TierSizes(ram=1 << 30, bandwidth={Tier.RAM: 0})), {}, "bandwidth"),
    ],
)
def test_what_makes_no_sense_is_refused(
    fleet: FleetOptions, how: dict[str, Any], says: str
) -> None:
    with pytest.raises(TidemillError, match=says):
        simulated(fleet, **how)
