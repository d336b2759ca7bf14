"""Energy of requests: what the machine draws while engines compute, by their share of the steps.

A request is charged the machine's power for the compute time of its share of the steps; what the
machine draws while no engine computes is charged to nobody. The power is measured between steps, by
counters of the machine; without counters it is the number that the operator gives, and everything
made of it is called estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemill.base.clock import monotonic
from tidemill.base.energy import Counter, joules_of
from tidemill.contract.wire import EngineStats

TICK_SECONDS = 1.0
"""Between two measurements while an engine computes."""

SHORTEST_SECONDS = 0.05
"""Of a measurement: counters move every few milliseconds, those of GPUs less often."""

LONGEST_SECONDS = 5.0
"""Of a measurement: a longer time had pauses, whose power is another."""

JOULES_PER_KWH = 3.6e6


class Energy(NamedTuple):
    """Of one request.

    Attributes:
        joules: see the module.
        grams: of carbon dioxide; None: no intensity is configured.
        estimated: the power is the operator's number.
    """

    joules: float
    grams: float | None
    estimated: bool


class EnergyMeter:
    """Knows the power of this machine while its engines compute.

    Args:
        counters: of the machine; empty: none can be read.
        watts: the machine's power while an engine computes, where there are no counters; None:
            not known, and requests have no energy.
        intensity: grams of carbon dioxide a kilowatt-hour; None: not known.
    """

    def __init__(
        self,
        counters: Mapping[str, Counter],
        watts: float | None = None,
        intensity: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._counters = dict(counters)
        self._given = watts
        self._intensity = intensity
        self._computed: dict[str, float] = {}
        self._sum = 0.0  # of compute seconds over all engines
        self._at, self._last_sum = monotonic(), 0.0
        self._last_joules = sum(joules_of(counters).values())
        self._watts = None if counters else watts

    def add(self, counters: Mapping[str, Counter]) -> None:
        """Further counters: a model computes on what they measure."""
        if new := {name: one for name, one in counters.items() if name not in self._counters}:
            self._counters |= new
            self._last_joules = sum(joules_of(self._counters).values())
            self._watts = None

    @property
    def estimated(self) -> bool:
        """There are no counters."""
        return not self._counters

    def totals(self) -> dict[str, float]:
        """Joules of the machine since the start, by counter."""
        return joules_of(self._counters)

    def step(self, model: str, stats: EngineStats) -> None:
        """An engine has told of its steps."""
        before = self._computed.get(model, 0.0)
        now = stats.compute_seconds
        self._sum += now - before if now >= before else now  # a new engine counts from 0
        self._computed[model] = now
        if monotonic() - self._at >= TICK_SECONDS:
            self._measure()

    def charge(self, computed: float) -> Energy | None:
        """The energy of a request that has ended; None: not known.

        Args:
            computed: seconds of its share of the steps.
        """
        if monotonic() - self._at >= SHORTEST_SECONDS:
            self._measure()
        if self._watts is None:
            return None
        joules = computed * self._watts
        intensity = self._intensity()
        grams = None if intensity is None else joules / JOULES_PER_KWH * intensity
        return Energy(joules, grams, self.estimated)

    def _measure(self) -> None:
        now, joules = monotonic(), sum(joules_of(self._counters).values())
        seconds, spent = now - self._at, joules - self._last_joules
        computed = self._sum - self._last_sum
        self._at, self._last_sum, self._last_joules = now, self._sum, joules
        if seconds > LONGEST_SECONDS or not computed:
            return
        # Of engines that compute at the same time each has its part of the power.
        if self._counters:
            self._watts = spent / max(seconds, computed)
        elif self._given is not None:
            self._watts = self._given * min(1.0, seconds / computed)


class Intensity:
    """Grams of carbon dioxide a kilowatt-hour: a number, or a file that something keeps current.

    Args:
        text: the number, or the file's path. The file has a number, or JSON with
            ``carbonIntensity``.
    """

    RELOAD_SECONDS = 60.0

    def __init__(self, text: str) -> None:
        self._path: Path | None = None
        self._value: float | None = None
        self._next = 0.0
        try:
            self._value = float(text)
        except ValueError:
            self._path = Path(text)

    def __call__(self) -> float | None:
        """Now; None: the file has none."""
        if self._path is not None and monotonic() >= self._next:
            self._next = monotonic() + self.RELOAD_SECONDS
            self._value = _read(self._path)
        return self._value


def _read(path: Path) -> float | None:
    import json

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        value = float(found["carbonIntensity"] if isinstance(found, dict) else found)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if 0.0 <= value < float("inf") else None
