"""Who makes room when the blocks run out."""

from __future__ import annotations

from helpers.drive import Machine, request
from helpers.fake_backend import expected_tokens


def preemptions(machine: Machine, name: str) -> int:
    timings = machine.collected[name, 0].terminal[0].timings
    assert timings is not None
    return timings.preemptions


def test_who_has_least_to_compute_again_makes_room() -> None:
    # Blocks of 4 tokens: the three prompts take 2, 5 and 2 of the 11, and all grow.
    machine = Machine(num_blocks=11, max_model_len=40, max_step_tokens=64, prefix_caching=False)
    prompts = {"old": [11] * 7, "big": [12] * 18, "small": [13] * 6}
    machine.submit(request("old", prompts["old"], 16, arrival=1.0))
    machine.submit(request("small", prompts["small"], 16, arrival=2.0))
    machine.submit(request("big", prompts["big"], 16, arrival=3.0))
    while not machine.scheduler.stats().preemptions:
        machine.step()
    [waiting] = list(machine.scheduler._state.queue)
    assert waiting.owner.request.request_id == "small", "the last in order had most to lose"
    machine.run()
    assert preemptions(machine, "old") == 0
    for name, prompt in prompts.items():
        assert machine.tokens(name) == expected_tokens(prompt, 16, 97)


def test_what_others_hold_too_is_not_lost() -> None:
    machine = Machine(num_blocks=64, max_step_tokens=64)
    shared = [21] * 20
    machine.submit(request("first", [*shared, 1], 30))
    machine.step()
    machine.submit(request("second", [*shared, 2], 30), request("other", [22] * 12, 30))
    machine.step()
    machine.step()
    state = machine.scheduler._state
    by_name = {seq.owner.request.request_id: seq for seq in state.running}
    victim = state.victim(by_name["first"], set())
    # `second` has computed more, but the shared prefix stays with `first`.
    assert by_name["second"].computed > by_name["other"].computed
    assert victim is by_name["second"]
    machine.run()


def test_tenants_over_their_share_are_asked_and_the_oldest_never() -> None:
    machine = Machine(num_blocks=64, max_step_tokens=64, prefix_caching=False)
    machine.submit(
        request("a1", [1] * 9, 30, tenant="a", arrival=1.0),
        request("b1", [2] * 5, 30, tenant="b", arrival=2.0),
        request("a2", [4] * 9, 30, tenant="a", arrival=3.0),
    )
    machine.step()
    machine.step()
    state = machine.scheduler._state
    by_name = {seq.owner.request.request_id: seq for seq in state.running}
    assert state.victim(by_name["b1"], set()) is by_name["a2"]
    assert state.victim(by_name["a2"], set()) is None
    assert state.victim(by_name["a1"], set()) is by_name["b1"]
    machine.run()
