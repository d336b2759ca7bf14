"""What a backend counted, as messages carry it."""

from __future__ import annotations

from tidemill.backends.base import BackendProfile
from tidemill.backends.base import MachineRates as BackendRates
from tidemill.contract.profile import KernelTime, MachineRates, StepCounters


def step_counters(found: BackendProfile | None) -> StepCounters | None:
    """Of a backend's profile."""
    if found is None:
        return None
    return StepCounters(
        steps=found.steps,
        rows=found.rows,
        tokens=found.tokens,
        seconds=found.step_ns / 1e9,
        kernels=tuple(
            KernelTime(
                *(of.part, of.kernel, of.weights, of.activations, of.few, of.calls),
                *(of.ns / 1e9, of.busy_ns / 1e9, of.nbytes, of.operations),
            )
            for of in found.kernels
        ),
        events=found.events,
        cut_events=found.cut_events,
        parts=found.parts,
        kernel_names=found.kernel_names,
        weight_types=found.weight_types,
    )


def rates_of(found: BackendRates | None) -> MachineRates | None:
    """Of a backend's rates."""
    if found is None:
        return None
    return MachineRates(read_bandwidth=found.read_bandwidth, operations=found.operations)
