"""Energy that this machine counts itself: RAPL of its processors, NVML of its GPUs.

What cannot be read is absent: RAPL is in no virtual machine, and often readable for root alone.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path

RAPL = Path("/sys/class/powercap")

Reader = Callable[[], float]
"""Joules of a counter now; raises OSError or ValueError."""


class Counter:
    """Joules since it was made, of a counter that begins anew at times.

    Args:
        read: the counter.
        limit: joules at which it begins anew; 0: it does not.
    """

    def __init__(self, read: Reader, limit: float = 0.0) -> None:
        self._read, self._limit = read, limit
        self._last = read()
        self._joules = 0.0

    def joules(self) -> float:
        """So far; of a counter that cannot be read any more what was read last. One that begins
        anew is continued, if it is read before it does so again."""
        with contextlib.suppress(OSError, ValueError):
            now = self._read()
            step = now - self._last
            if step < 0:
                step = step + self._limit if self._limit else now
            self._joules += step
            self._last = now
        return self._joules


def rapl_counters(root: Path = RAPL) -> dict[str, Counter]:
    """Of the packages and the boards that RAPL counts as a whole, by name.

    Args:
        root: where the kernel lists them.
    """
    found: dict[str, Counter] = {}
    for zone in sorted(root.glob("intel-rapl:[0-9]*")):  # also of AMD
        if zone.name.count(":") > 1:
            continue  # a part of a package
        with contextlib.suppress(OSError, ValueError):
            name = (zone / "name").read_text().strip()
            limit = int((zone / "max_energy_range_uj").read_text()) + 1
            found[f"rapl:{name}"] = Counter(_file(zone / "energy_uj"), limit / 1e6)
    whole = found.get("rapl:psys")  # the board, packages included
    return found if whole is None else {"rapl:psys": whole}


def _file(path: Path) -> Reader:
    return lambda: int(path.read_text()) / 1e6


def gpu_counters(library: str = "libnvidia-ml.so.1") -> dict[str, Counter]:
    """Of this machine's NVIDIA GPUs (Volta and later), by number.

    Args:
        library: of the driver.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return {}
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return {}
    found: dict[str, Counter] = {}
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            continue
        with contextlib.suppress(OSError):
            found[f"nvml:{index}"] = Counter(_gpu(nvml, device))
    return found


def _gpu(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> Reader:
    def read() -> float:
        millijoules = ctypes.c_ulonglong()
        code = nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
        if code:
            raise OSError(f"NVML: error {code}")
        return millijoules.value / 1e3

    return read


def joules_of(counters: Mapping[str, Counter]) -> dict[str, float]:
    """Of all of them."""
    return {name: counter.joules() for name, counter in counters.items()}
