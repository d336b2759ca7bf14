"""Plans of two steps that compute at the same time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from helpers.drive import Machine, request
from helpers.fake_backend import expected_tokens

from tidemill.contract.plan import StepPlan


def _prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(length)]


def _sequences(plan: StepPlan) -> set[int]:
    return {row.seq_id for row in plan.rows}


@pytest.mark.parametrize("streams", [2, 3, 8])
def test_streams_take_turns_by_halves(streams: int) -> None:
    machine = Machine(pipelined=True)
    for i in range(streams):
        machine.submit(request(f"r{i}", _prompt(3, i), 12))
    machine.run()
    for i in range(streams):
        assert machine.tokens(f"r{i}") == expected_tokens(_prompt(3, i), 12, 97)
    decoding = [plan for plan in machine.plans if all(row.count == 1 for row in plan.rows)]
    decoding = decoding[
        2:-4
    ]  # the first have a prompt's tokens behind them, the last fewer streams
    assert decoding
    for plan, following in pairwise(decoding):
        assert not _sequences(plan) & _sequences(following)
        assert len(plan.rows) + len(following.rows) == streams
        assert all(row.input_from is None for row in plan.rows)


def test_a_stream_alone_takes_every_step() -> None:
    machine = Machine(pipelined=True)
    machine.submit(request("alone", _prompt(3, 1), 20))
    machine.run()
    assert machine.tokens("alone") == expected_tokens(_prompt(3, 1), 20, 97)
    assert sum(row.input_from is not None for plan in machine.plans for row in plan.rows) > 15


def test_the_next_step_is_launched_at_once_where_it_needs_no_token() -> None:
    def soon(machine: Machine) -> bool:
        return machine.scheduler.overlap_seconds == 0.0

    machine = Machine(pipelined=True, max_step_tokens=8)
    machine.submit(request("long", _prompt(20, 1), 5))
    machine.launch()
    assert soon(machine)  # more of the prompt
    machine.launch()
    machine.land()
    machine.launch()  # the rest of it
    machine.land()
    assert not soon(machine)
    machine.submit(request("other", _prompt(3, 2), 5))
    assert soon(machine)
    plain = Machine(max_step_tokens=8)
    plain.submit(request("long", _prompt(20, 1), 5))
    plain.launch()
    assert not soon(plain)


def test_a_prompt_beside_a_stream_waits_for_none_of_its_tokens() -> None:
    machine = Machine(pipelined=True, max_step_tokens=8)
    machine.submit(request("stream", _prompt(3, 1), 30))
    machine.step()
    machine.submit(request("long", _prompt(60, 2), 3))
    machine.run()
    assert machine.tokens("long") == expected_tokens(_prompt(60, 2), 3, 97)
    mixed = [plan for plan in machine.plans if any(row.count > 1 for row in plan.rows)]
    assert len(mixed) > 5
    assert all(row.input_from is None for plan in mixed[2:] for row in plan.rows)
