"""The scheduler lives on the clock it is given: it can run in simulated time."""

from __future__ import annotations

import sys
import time

import pytest
from helpers.drive import Machine, request
from helpers.simulated import Simulation, prompt

from tidemill.contract.request import FinishReason, RequestTimings

CLOCKS = [
    name + unit
    for name in ("monotonic", "time", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
]


def timings_of(machine: Machine, name: str) -> RequestTimings:
    timings = machine.collected[name, 0].terminal[0].timings
    assert timings is not None
    return timings


@pytest.fixture
def no_real_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*args: object) -> float:
        raise AssertionError("a real clock was read")

    real = [getattr(time, name) for name in CLOCKS]
    for name in CLOCKS:
        monkeypatch.setattr(time, name, read)
    rooms = ("tidemill.base.clock", "tidemill.sched", "tidemill.memory")
    for module in [m for name, m in sys.modules.items() if name.startswith(rooms)]:
        for name, value in list(vars(module).items()):
            if value in real:  # imported by name
                monkeypatch.setattr(module, name, read)


@pytest.mark.usefixtures("no_real_clock")
def test_a_crowded_scheduler_reads_no_real_clock() -> None:
    machine = Machine(num_blocks=12, block_size=4, max_model_len=48, max_num_seqs=6)
    for i in range(8):
        machine.submit(
            request(f"r{i}", prompt(9 + i, i), 12, tenant=f"t{i % 3}", n=1 + i % 2, seed=i)
        )
    machine.submit(request("late", prompt(9, 9), 12, deadline=4.0))
    machine.submit(request("queued", prompt(9, 10), 12, start_by=6.0, priority=9))
    while machine.step():
        machine.now += 1.0
        machine.take(machine.scheduler.expire())
        if machine.now == 5.0:
            machine.take(machine.scheduler.cancel("r3"))
    stats = machine.scheduler.stats()
    # Whatever reads a clock ran.
    assert stats.preemptions and stats.expired and stats.queue_expired


@pytest.mark.usefixtures("no_real_clock")
def test_a_simulation_reads_no_real_clock() -> None:
    sim = Simulation()
    for i in range(4):
        sim.at(float(i), request(f"r{i}", prompt(600, i), 20, tenant=f"t{i}"))
    sim.run()
    assert all(seen.ended is not None for seen in sim.seen.values())


def test_timings_are_of_the_given_clock_from_its_zero_on() -> None:
    machine = Machine(max_num_seqs=1, depth=1)
    machine.submit(request("first", prompt(4, 1), 2), request("second", prompt(4, 2), 2))
    for _ in range(4):
        assert machine.launch()
        machine.now += 1.0
        machine.land()
    assert timings_of(machine, "first") == RequestTimings(0.0, 0.0, 1.0, 2.0)
    assert timings_of(machine, "second") == RequestTimings(0.0, 2.0, 3.0, 4.0)


def test_a_request_that_began_at_zero_does_not_expire_in_the_queue() -> None:
    machine = Machine(max_num_seqs=1)
    machine.submit(request("begun", prompt(4, 1), 9, start_by=1.0))
    machine.step()
    machine.now = 2.0
    machine.take(machine.scheduler.expire())
    machine.run()
    assert machine.collected["begun", 0].terminal[0].finish_reason is FinishReason.LENGTH
