"""Measurements that are kept on this machine: costs of models, and the machine's own rates."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill.base.errors import TidemillError
from tidemill.contract.needs import MemoryNeeds
from tidemill.planning.devices import Attainment, Device
from tidemill.simulate.costs import (
    Costs,
    EngineFacts,
    MachineFacts,
    file_name,
    read_costs,
    write_costs,
)
from tidemill.worker.machine import total_memory, usable_cpus

_RATES = "machine.json"
# Smaller weights stay in a processor's caches.
_WEIGHTS = (1.2e8, math.inf)
# Packing pads matrices by instruction set.
_SAME_BYTES = 0.02


class TypeRates(msgspec.Struct, frozen=True):
    """Rates with weights of one type: bytes per second read, and operations per second."""

    read: float
    flops: float


class MachineRates(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine does with any model, measured with random weights.

    Attributes:
        machine: that was measured.
        created: UTC, ISO 8601.
        types: type of weights -> rates.
        layer_seconds: per layer and step, beside reading and computing.
        spread: see `devices.Attainment`.
    """

    machine: MachineFacts
    created: str
    types: dict[str, TypeRates]
    layer_seconds: float
    spread: float

    def device(self, weight_type: str) -> Device:
        """As a device for weights of a type: its rates are attained, so all shares are 1.

        Types that were not measured are read like the measured one of the next larger size, and
        computed as `Device.rate` has it.
        """
        nearest = weight_type if weight_type in self.types else _like(weight_type)
        rates = self.types.get(nearest, self.types["bfloat16"])
        basis = f"random weights computed on this machine ({self.created})"
        spread = self.spread if nearest == weight_type else 2 * self.spread
        return Device(
            name="this machine",
            memory=self.machine.memory_bytes,
            bandwidth=rates.read,
            flops={weight_type: rates.flops, "bfloat16": self.types["bfloat16"].flops},
            watts=None,
            price=None,
            attainment=Attainment(1.0, 1.0, self.layer_seconds, spread, basis, _WEIGHTS),
            source="measured by `tidemill calibrate --machine`",
        )


def _like(weight_type: str) -> str:
    """The measured type whose kernels are the most alike."""
    if weight_type.startswith(("q8", "i8", "int8", "f8", "q6")):
        return "q8_0"
    return "q4_0" if weight_type.startswith(("q", "iq", "tq", "mxfp4", "nvfp4")) else "bfloat16"


def this_machine() -> MachineFacts:
    """The machine, as costs name it."""
    return MachineFacts(
        processor=_processor(), cores=usable_cpus(), memory_bytes=total_memory(), device="cpu"
    )


def _processor() -> str:
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(
        (name.strip(), value.strip()) for name, _, value in map(_pair, first.splitlines())
    )
    named = fields.get("model name") or platform.machine()
    return f"{named}, family {fields['cpu family']}" if "cpu family" in fields else named


def _pair(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def keep_costs(folder: Path, costs: Costs) -> Path:
    """Write costs where `find_costs` finds them."""
    path = folder / file_name(costs.machine, costs.engine)
    write_costs(costs, path)
    return path


class Computed(NamedTuple):
    """What a model's costs depend on beside the machine; members as in `EngineInfo`."""

    family: str
    parameters: int
    dtype: str
    kv_dtype: str
    quantization: str
    weight_bytes: int
    threads: int


def find_costs(folder: Path, needs: MemoryNeeds, threads: int) -> Costs | None:
    """As `find_costs_of`, for a model that is not loaded."""
    facts = needs.facts
    if facts is None:
        return None
    return find_costs_of(
        folder,
        Computed(
            facts.family, facts.parameters, needs.dtype, needs.kv_dtype, facts.quantization,
            needs.weight_bytes, threads,
        ),
    )  # fmt: skip


def find_costs_of(folder: Path, asked: Computed) -> Costs | None:
    """The newest costs of a model of these sizes, computed like this on this machine.

    Weights' values cost nothing, so that a model of the same shape and types will do.
    """
    machine, found = this_machine(), list[tuple[str, Costs]]()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            costs = read_costs(path)
        except TidemillError:
            continue
        if costs.machine == machine and _is_of(costs.engine, asked):
            found.append((costs.created, costs))
    return max(found, key=lambda one: one[0])[1] if found else None


def _is_of(engine: EngineFacts, asked: Computed) -> bool:
    measured = Computed(*(getattr(engine, name) for name in Computed._fields))
    sizes = abs(measured.weight_bytes - asked.weight_bytes) <= _SAME_BYTES * asked.weight_bytes
    return sizes and measured._replace(weight_bytes=0) == asked._replace(weight_bytes=0)


def keep_rates(folder: Path, rates: MachineRates) -> Path:
    """Write the machine's rates where `find_rates` finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _RATES
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(rates), indent=2) + b"\n")
    os.replace(temporary, path)
    return path


def find_rates(folder: Path) -> MachineRates | None:
    """This machine's rates; None where it, or its number of processors, is another one now."""
    try:
        rates = msgspec.json.decode((folder / _RATES).read_bytes(), type=MachineRates)
    except (OSError, msgspec.MsgspecError):
        return None
    return rates if rates.machine == this_machine() else None
