"""Energy and money of a measurement: what this machine can read, and what prices say. What cannot
be measured is absent."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Mapping
from pathlib import Path

from tidemill.base.energy import RAPL, gpu_counters, joules_of, rapl_counters
from tidemill.bench.results import PointReport


def is_local(host: str) -> bool:
    """Whether the server runs on this machine, so that its energy can be read here."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class EnergyMeter:
    """Joules between `__init__` and `read`, by source: RAPL packages and GPUs of this machine
    (which include the client and everything else that runs).

    Args:
        host: of the server; for one elsewhere nothing is read.
        root: where the kernel lists RAPL's counters.
    """

    def __init__(self, host: str, root: Path = RAPL) -> None:
        local = is_local(host)
        self._counters = {**rapl_counters(root), **gpu_counters()} if local else {}

    def read(self) -> dict[str, float]:
        """Joules since the start; empty where nothing can be read."""
        return joules_of(self._counters)


def cost(point: PointReport, prices: Mapping[str, float]) -> dict[str, float]:
    """US dollars of a point by the prices that were given: ``tokens`` by the price list and
    ``machine`` by the hour, with what a million output tokens then cost."""
    found: dict[str, float] = {}
    if "input" in prices or "output" in prices:
        dear, cheap = prices.get("input", 0.0), prices.get("cached", prices.get("input", 0.0))
        fresh = point.input_tokens - point.cached_tokens
        found["tokens"] = (
            fresh * dear
            + point.cached_tokens * cheap
            + point.output_tokens * prices.get("output", 0.0)
        ) / 1e6
    if "hour" in prices:
        found["machine"] = point.seconds / 3600 * prices["hour"]
        if point.output_tokens:
            found["machine_per_million_output"] = 1e6 * found["machine"] / point.output_tokens
    return found
