"""A profile: where an engine's time went for some seconds, as messages carry it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

MAX_PROFILE_SECONDS = 300.0

BETWEEN = "between_loops"
"""Kernel of what one thread does between two loops of all threads."""


class KernelTime(msgspec.Struct, frozen=True, array_like=True):
    """What a kernel took in a part of the steps.

    Attributes:
        part: of a step: ``attention``, ``feed_forward``, ``head``, ``await_masks`` ...; ``other``:
            none of them.
        kernel: ``product``, ``attention``, ``scan``, ``sampling``, ``elementwise`` (norms, RoPE,
            activations, conversions) or `BETWEEN`.
        weights, activations: their types, of a product; else empty.
        few: it computed few rows at once (at most 16), so that reading bounds it.
        calls: loops.
        seconds: of the step.
        busy_seconds: of all threads together.
        nbytes: weights, K, V and states that were read; 0: not counted.
        operations: a multiply-add counts two; 0: not counted.
    """

    part: str
    kernel: str
    weights: str
    activations: str
    few: bool
    calls: int
    seconds: float
    busy_seconds: float
    nbytes: int
    operations: int


class StepCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend counted of its steps.

    Attributes:
        steps, rows, tokens: numbers.
        seconds: of the steps.
        kernels: sum to `seconds`.
        events: the trace's first records, packed; see `read_events`.
        cut_events: records beyond those.
        parts, kernel_names: what numbers in the records mean.
        weight_types: the same, by number.
    """

    steps: int
    rows: int
    tokens: int
    seconds: float
    kernels: tuple[KernelTime, ...]
    events: bytes = b""
    cut_events: int = 0
    parts: tuple[str, ...] = ()
    kernel_names: tuple[str, ...] = ()
    weight_types: dict[int, str] = {}


class MachineRates(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine can do at most, as measured.

    Attributes:
        read_bandwidth: bytes per second, of the engine's threads together.
        operations: per second and type of activations, of its threads together.
        busy: steps ran meanwhile, so that it can do more.
    """

    read_bandwidth: float
    operations: dict[str, float] = {}
    busy: bool = False


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of an engine went.

    Attributes:
        seconds: how long it was watched.
        steps: numbers of steps that ended.
        counters: what the backend counted; None: it counts nothing.
        idle_seconds: the engine had nothing to do.
        waiting_seconds: its thread waited for a step (and drafted).
        submitting_seconds: its thread made plans into arrays and submitted them.
        thread_cpu_seconds: processor time of its thread.
        process_cpu_seconds: processor time of the engine's process.
        rates: what the machine can do; None: not measured.
        drafting: seconds that each drafter took while the engine's thread waited for its drafts.
    """

    seconds: float
    steps: int
    counters: StepCounters | None
    idle_seconds: float
    waiting_seconds: float
    submitting_seconds: float
    thread_cpu_seconds: float
    process_cpu_seconds: float
    rates: MachineRates | None = None
    drafting: dict[str, float] = {}


class Event(NamedTuple):
    """A record of a trace; times in nanoseconds since its begin."""

    begin: int
    ns: int
    rows: int
    tokens: int
    thread: int
    layer: int
    what: int
    part: int
    kernel: int
    weight: int


STEP, PART, LOOP = range(3)
"""Of `Event.what`."""

_EVENT = struct.Struct("=qqiihhbbbb")


def read_events(events: bytes) -> Iterator[Event]:
    """The records of `StepCounters.events`."""
    return map(Event._make, _EVENT.iter_unpack(events))
