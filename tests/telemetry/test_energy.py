"""Requests are charged the machine's power for their compute time, and nothing is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.base.energy import Counter
from tidemill.contract.wire import EngineStats
from tidemill.telemetry import energy
from tidemill.telemetry.energy import EnergyMeter, Intensity


class Machine:
    """A clock, a counter, and engines that compute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.joules = 100.0, 7.0
        self.computed: dict[str, float] = {}
        monkeypatch.setattr(energy, "monotonic", lambda: self.now)
        self.counter = Counter(lambda: self.joules)

    def run(self, meter: EnergyMeter, seconds: float, watts: float, **computed: float) -> None:
        """Time passes, in which engines compute so many seconds."""
        self.now += seconds
        self.joules += seconds * watts
        for model, more in computed.items():
            self.computed[model] = self.computed.get(model, 0.0) + more
            meter.step(model, EngineStats(compute_seconds=self.computed[model]))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_measured_power(machine: Machine) -> None:
    meter = EnergyMeter({"rapl:package-0": machine.counter}, watts=999.0, intensity=lambda: 360.0)
    assert meter.charge(1.0) is None  # nothing is measured yet, and the number does not count
    machine.run(meter, 2.0, watts=50.0, m=1.0)
    found = meter.charge(0.5)
    assert found is not None and not found.estimated
    assert found.joules == pytest.approx(25.0) and found.grams == pytest.approx(0.0025)
    assert meter.totals() == {"rapl:package-0": pytest.approx(100.0)}


def test_engines_that_compute_at_once_share_the_power(machine: Machine) -> None:
    meter = EnergyMeter({"rapl:package-0": machine.counter})
    machine.run(meter, 0.5, watts=60.0, a=0.5)
    machine.run(meter, 0.4, watts=60.0, a=0.4, b=0.9)
    machine.run(meter, 0.1, watts=60.0, a=0.1)
    found = meter.charge(1.9)  # all that both computed
    assert found is not None and found.joules == pytest.approx(60.0)


def test_a_pause_is_not_measured(machine: Machine) -> None:
    meter = EnergyMeter({"rapl:package-0": machine.counter})
    machine.run(meter, 2.0, watts=50.0, m=1.0)
    machine.run(meter, 3600.0, watts=5.0, m=0.1)
    found = meter.charge(1.0)
    assert found is not None and found.joules == pytest.approx(50.0)


def test_without_counters_it_is_the_operator_s_number_or_nothing(machine: Machine) -> None:
    assert EnergyMeter({}).charge(1.0) is None
    found = EnergyMeter({}, watts=65.0).charge(2.0)
    assert found is not None and found.joules == 130.0 and found.estimated and found.grams is None


def test_a_gpu_s_counter_takes_the_place_of_the_number(machine: Machine) -> None:
    meter = EnergyMeter({}, watts=65.0)
    meter.add({"nvml:0": machine.counter})
    machine.run(meter, 1.0, watts=300.0, m=1.0)
    found = meter.charge(1.0)
    assert found is not None and found.joules == pytest.approx(300.0) and not found.estimated


def test_a_new_engine_counts_from_0(machine: Machine) -> None:
    meter = EnergyMeter({"rapl:package-0": machine.counter})
    machine.run(meter, 1.0, watts=50.0, m=1.0)
    machine.computed["m"] = 0.0
    machine.run(meter, 1.0, watts=80.0, m=0.5)
    found = meter.charge(1.0)
    assert found is not None and found.joules == pytest.approx(80.0)


def test_intensity_is_a_number_or_what_a_file_says_now(tmp_path: Path, machine: Machine) -> None:
    assert Intensity("380")() == 380.0
    file = tmp_path / "grid"
    file.write_text("250")
    now = Intensity(str(file))
    assert now() == 250.0
    file.write_text(json.dumps({"zone": "X", "carbonIntensity": 120}))
    assert now() == 250.0
    machine.now += Intensity.RELOAD_SECONDS
    assert now() == 120.0
    for wrong in ("", "-1", '{"x": 1}', "[1]"):
        file.write_text(wrong)
        machine.now += Intensity.RELOAD_SECONDS
        assert now() is None
