"""A few simulated rollouts; `make rollouts` has two hundred of each kind."""

from __future__ import annotations

import pytest
from rollouts.run import RULE, SCENARIOS, faults, shares
from rollouts.simulation import Outcome, Version, simulate

from tidemill.server.host.rollout.machine import Phase

# Seeds that `make rollouts` uses as well. A wrong decision among so few is a fault of the code:
# with alpha of 5 % over five limits, the bound on its probability is 1 % per limit.
SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("version", "phase", "word"),
    [
        (Version(), Phase.PROMOTED, "errors, ttft, itl, length"),
        (Version(error_rate=0.1), Phase.ROLLED_BACK, "errors is worse"),
        (Version(slower=1.5), Phase.ROLLED_BACK, "itl is worse"),
        (Version(length=0.5), Phase.ROLLED_BACK, "length is worse"),
    ],
    ids=["the same", "errors", "slower", "shorter"],
)
def test_a_worse_version_is_rolled_back_and_a_good_one_promoted(
    version: Version, phase: Phase, word: str, seed: int
) -> None:
    outcome = simulate(RULE, version, seed)
    assert outcome.phase is phase
    assert word in outcome.reason


def test_a_simulation_is_the_same_every_time() -> None:
    version = Version(error_rate=1.0)
    assert simulate(RULE, version, 1) == simulate(RULE, version, 1)
    assert simulate(RULE, version, 1) != simulate(RULE, version, 2)


def test_the_report_finds_what_is_not_kept() -> None:
    ended = [Outcome(Phase.PROMOTED, "", 1, 1, 1.0)] * 9
    ended.append(Outcome(Phase.ROLLED_BACK, "", 1, 1, 1.0))
    _, least, most = SCENARIOS["the same"]
    assert faults(shares(ended), least, most) == [
        "promoted: 90.0% < 95%",
        "rolled back: 10.0% > 5%",
    ]
