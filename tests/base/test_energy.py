"""Counters of energy."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from tidemill.base import energy
from tidemill.base.energy import Counter, gpu_counters, joules_of, rapl_counters


def zone(root: Path, name: str, label: str, joules: int = 9, limit: int = 10) -> Path:
    (root / name).mkdir()
    (root / name / "name").write_text(f"{label}\n")
    (root / name / "max_energy_range_uj").write_text(f"{limit * 1_000_000 - 1}\n")
    (root / name / "energy_uj").write_text(f"{joules}000000\n")
    return root / name / "energy_uj"


def test_packages_are_read_and_go_on_where_their_counters_begin_anew(tmp_path: Path) -> None:
    one = zone(tmp_path, "intel-rapl:0", "package-0")
    zone(tmp_path, "intel-rapl:1", "package-1")
    zone(tmp_path, "intel-rapl:0:0", "core")  # a part of package-0
    counters = rapl_counters(tmp_path)
    assert joules_of(counters) == {"rapl:package-0": 0.0, "rapl:package-1": 0.0}
    for value, total in ((9_500_000, 0.5), (500_000, 1.5), (2_000_000, 3.0)):
        one.write_text(str(value))
        assert joules_of(counters)["rapl:package-0"] == pytest.approx(total)


def test_a_board_is_the_whole(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    zone(tmp_path, "intel-rapl:1", "psys")
    assert list(rapl_counters(tmp_path)) == ["rapl:psys"]


def test_what_cannot_be_read_is_absent(tmp_path: Path) -> None:
    file = zone(tmp_path, "intel-rapl:0", "package-0")
    counters = rapl_counters(tmp_path)
    file.write_text("10000000")
    assert counters["rapl:package-0"].joules() == 1.0
    file.unlink()
    assert counters["rapl:package-0"].joules() == 1.0
    assert rapl_counters(tmp_path) == rapl_counters(tmp_path / "none") == {}
    assert gpu_counters("libno-such-library.so") == {}


def test_a_counter_without_a_limit_begins_at_0() -> None:
    values = iter((5.0, 7.0, 1.0))
    counter = Counter(lambda: next(values))
    assert (counter.joules(), counter.joules()) == (2.0, 3.0)


def _at(reference: Any, kind: type[Any]) -> Any:
    """What `ctypes.byref` refers to."""
    return ctypes.cast(reference, ctypes.POINTER(kind)).contents


class Nvml:
    """A driver's library with two GPUs, of which the second is too old to count."""

    millijoules = 5000

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        _at(count, ctypes.c_uint).value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:
        _at(device, ctypes.c_void_p).value = index + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, value: Any) -> int:
        _at(value, ctypes.c_ulonglong).value = self.millijoules
        return 0 if device.value == 1 else 3


def test_gpus_that_count_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setattr(energy.ctypes, "CDLL", lambda name: nvml)
    counters = gpu_counters()
    nvml.millijoules += 2500
    assert joules_of(counters) == {"nvml:0": 2.5}
