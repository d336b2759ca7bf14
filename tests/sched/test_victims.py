"""Who makes room when the blocks run out."""

from __future__ import annotations

import pytest
from helpers.drive import Machine, request
from helpers.fake_backend import expected_tokens

from tidemill.contract.request import Status


def preemptions(machine: Machine, name: str) -> int:
    timings = machine.collected[name, 0].terminal[0].timings
    assert timings is not None
    return timings.preemptions


def preempted(machine: Machine) -> list[str]:
    """The requests that were running and wait again."""
    return [
        seq.owner.request.request_id
        for seq in machine.scheduler.sequences()
        if seq.status is Status.PREEMPTED
    ]


def run_out(machine: Machine) -> dict[str, int]:
    """Step until somebody has to make room; the tokens computed one step before that."""
    computed: dict[str, int] = {}
    while not machine.scheduler.stats().preemptions:
        computed = {s.owner.request.request_id: s.computed for s in machine.scheduler.sequences()}
        assert machine.step()
    return computed


def test_who_has_least_to_compute_again_makes_room() -> None:
    # Blocks of 4 tokens: the three prompts take 2, 5 and 2 of the 11, and all grow.
    machine = Machine(num_blocks=11, max_model_len=40, max_step_tokens=64, prefix_caching=False)
    prompts = {"old": [11] * 7, "big": [12] * 18, "small": [13] * 6}
    machine.submit(request("old", prompts["old"], 16, arrival=1.0))
    machine.submit(request("small", prompts["small"], 16, arrival=2.0))
    machine.submit(request("big", prompts["big"], 16, arrival=3.0))
    run_out(machine)
    assert preempted(machine) == ["small"], "the last in order had most to lose"
    machine.run()
    assert preemptions(machine, "old") == 0
    for name, prompt in prompts.items():
        assert machine.tokens(name) == expected_tokens(prompt, 16, 97)


def test_what_others_hold_too_is_not_lost() -> None:
    machine = Machine(num_blocks=16, max_step_tokens=64)
    shared = [21] * 20
    machine.submit(request("first", [*shared, 1], 30))
    machine.step()
    machine.submit(request("second", [*shared, 2], 30), request("other", [22] * 12, 30))
    computed = run_out(machine)
    # `second` has computed more, but the shared prefix stays with `first`.
    assert computed["second"] > computed["other"] + 4
    assert preempted(machine) == ["second"]
    machine.run()


@pytest.mark.parametrize(
    ("blocks", "victim"),
    [
        (12, "a2"),  # for b1: it has computed more, but its tenant holds twice as much
        (13, "b1"),  # for a1, the oldest: whoever has computed least
    ],
)
def test_tenants_over_their_share_make_room_and_all_do_for_the_oldest(
    blocks: int, victim: str
) -> None:
    machine = Machine(num_blocks=blocks, max_step_tokens=64, prefix_caching=False)
    machine.submit(
        request("a1", [1] * 9, 30, tenant="a", arrival=1.0),
        request("b1", [2] * 5, 30, tenant="b", arrival=2.0),
        request("a2", [4] * 9, 30, tenant="a", arrival=3.0),
    )
    run_out(machine)
    assert preempted(machine) == [victim]
    machine.run()
    assert preemptions(machine, "a1") == 0
