"""What the core counted of its steps, with names; and what the machine can do."""

from __future__ import annotations

from tidemill.backends.base import BackendProfile, KernelCount, MachineRates
from tidemill.backends.native import _core
from tidemill.backends.native.layout import WEIGHT_TYPES
from tidemill.base.free_memory import free_memory

# Larger than the caches of all cores together; read by the engine's threads in equal parts.
RATE_BYTES = 512 << 20
RATE_ROUNDS = 5

# Codes of csrc/kernels/kernels.h; by how activations are multiplied.
ACT_TYPES = ("float32", "bfloat16", "int8", "int8", "int8", "int8")

_WEIGHT_NAMES = {code: name for name, code in WEIGHT_TYPES.items()}


def read_profile(found: _core._Profile) -> BackendProfile:
    """What `_core.Executor.end_profile` returned."""
    totals, counters, events = found
    kernels = [
        KernelCount(
            part,
            kernel,
            _WEIGHT_NAMES.get(weights, ""),
            ACT_TYPES[acts] if acts >= 0 else "",
            few,
            *(calls, ns, busy_ns, nbytes, operations),
        )
        for part, kernel, weights, acts, few, calls, ns, busy_ns, nbytes, operations in counters
    ]
    parts, names = _core.PROFILE_NAMES
    return BackendProfile(
        int(totals["steps"]),
        int(totals["rows"]),
        int(totals["tokens"]),
        totals["step_ns"],
        kernels,
        events,
        int(totals["cut_events"]),
        tuple(parts),
        tuple(names),
        _WEIGHT_NAMES,
    )


def machine_rates(core: _core.Executor) -> MachineRates | None:
    """What the executor's threads can do together; None where memory is too short to find out."""
    if free_memory() < 4 * RATE_BYTES:
        return None
    peaks = {name: core.peak(code) for code, name in enumerate(ACT_TYPES[:3])}
    return MachineRates(
        _core.read_bandwidth(core.threads, RATE_BYTES // core.threads, RATE_ROUNDS),
        {name: peak for name, peak in peaks.items() if peak > 0},
    )
