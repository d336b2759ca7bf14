"""The energy of requests: what measures it, and who is told."""

from __future__ import annotations

from tidemill.base.energy import gpu_counters, rapl_counters
from tidemill.metrics.energy import EnergyMetrics
from tidemill.server.context import ServerContext
from tidemill.telemetry.energy import EnergyMeter, Intensity


def measure(context: ServerContext, watts: float | None, intensity: str | None) -> None:
    """Charge requests with energy from now on, if any can be known. GPUs count once a model
    computes on one.

    Args:
        context: that records requests.
        watts: of this machine while an engine computes, for where it has no counters.
        intensity: of its power, see `Intensity`.
    """
    counters, gpus = rapl_counters(), gpu_counters()
    if not counters and not gpus and watts is None:
        return
    meter = EnergyMeter(counters, watts, _no_carbon if intensity is None else Intensity(intensity))

    def loaded(device: str) -> None:
        if device != "cpu":
            meter.add(gpus)

    context.on_loaded.append(loaded)
    context.on_step.append(meter.step)
    assert context.recording is not None
    context.recording.meter = meter
    EnergyMetrics(context.metrics.registry, meter.totals)


def _no_carbon() -> None:
    return None
