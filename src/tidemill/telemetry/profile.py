"""A profile as a document, as text, and as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tidemill.contract.profile import (
    BETWEEN,
    LOOP,
    STEP,
    EngineProfile,
    KernelTime,
    MachineRates,
    StepCounters,
    read_events,
)

Document = dict[str, Any]

BAR = 24
"""Columns of the longest bar of the text."""

WAITING_PARTS = ("await_weights", "await_masks", "await_stage")
"""Parts of a step in which nothing is computed."""


class Engine(NamedTuple):
    """Whose profile it is."""

    model: str
    backend: str
    isa: str
    threads: int


def document(engine: Engine, profile: EngineProfile, api_seconds: float) -> Document:
    """The profile for people and programs. docs/observability.md describes the members.

    Args:
        engine: whose it is.
        profile: what was found.
        api_seconds: processor time of the API process meanwhile.
    """
    found: Document = {**engine._asdict(), "seconds": _rounded(profile.seconds)}
    counters = profile.counters
    computing = profile.waiting_seconds if counters is None else counters.seconds
    idle = min(profile.idle_seconds, profile.seconds)
    computing = min(computing, profile.seconds - idle)
    between = profile.seconds - idle - computing
    found["time"] = _shares(
        {"steps": computing, "between_steps": between, "idle": idle}, profile.seconds
    )
    planning = profile.seconds - idle - profile.waiting_seconds - profile.submitting_seconds
    found["engine_thread"] = _shares(
        {
            "waiting": profile.waiting_seconds,
            "submitting": profile.submitting_seconds,
            "scheduling": max(0.0, planning),
            "idle": idle,
        },
        profile.seconds,
    )
    if profile.drafting:
        found["drafters"] = _shares(profile.drafting, profile.seconds)
    found["processor_seconds"] = {
        "engine": _rounded(profile.process_cpu_seconds),
        "engine_thread": _rounded(profile.thread_cpu_seconds),
        "api": _rounded(api_seconds),
    }
    found["roofline"] = _roofline(profile.rates)
    if counters is None:
        return {
            **found,
            "steps": {"count": profile.steps},
            "note": f"the {engine.backend} backend counts no kernels",
        }
    return {**found, **_counted(engine, counters, profile.rates)}


def _counted(engine: Engine, counters: StepCounters, rates: MachineRates | None) -> Document:
    total = counters.seconds

    def table(name_of: Callable[[KernelTime], Document]) -> list[Document]:
        sums: dict[tuple[Any, ...], _Sum] = {}
        for of in counters.kernels:
            name = name_of(of)
            sums.setdefault(tuple(name.values()), _Sum(name)).add(of)
        ranked = sorted(sums.values(), key=lambda one: -one.seconds)
        return [one.row(total, engine.threads, rates) for one in ranked]

    busy = sum(of.busy_seconds for of in counters.kernels)
    return {
        "steps": {
            "count": counters.steps,
            "rows": counters.rows,
            "tokens": counters.tokens,
            "seconds": _rounded(total),
            "threads_busy": _rounded(busy / (total * engine.threads)) if total else None,
        },
        "parts": table(lambda of: {"part": of.part}),
        "kernels": table(_kernel),
        "parts_by_kernel": table(lambda of: {"part": of.part, **_kernel(of)}),
    }


def _kernel(of: KernelTime) -> Document:
    waits = of.kernel == BETWEEN and of.part in WAITING_PARTS
    return {
        "kernel": "waiting" if waits else of.kernel,
        "weights": of.weights,
        "activations": of.activations,
        "rows": "" if not of.operations else "few" if of.few else "many",
    }


class _Sum:
    """Rows of one name, added."""

    def __init__(self, name: Document) -> None:
        self._name = name
        self.seconds = self._busy = 0.0
        self._calls = self._nbytes = self._operations = 0
        self._activations: set[str] = set()
        self._counted = 0.0  # seconds of what is counted

    def add(self, of: KernelTime) -> None:
        self.seconds += of.seconds
        self._busy += of.busy_seconds
        self._calls += of.calls
        self._nbytes += of.nbytes
        self._operations += of.operations
        if of.operations:
            self._counted += of.seconds
            self._activations.add(of.activations)

    def row(self, total: float, threads: int, rates: MachineRates | None) -> Document:
        row: Document = {
            **self._name,
            "seconds": _rounded(self.seconds),
            "share": _rounded(self.seconds / total) if total else 0.0,
            "calls": self._calls,
            "threads_busy": _rounded(self._busy / self.seconds / threads) if self.seconds else None,
        }
        if not self._counted:
            return row
        bandwidth = self._nbytes / self._counted
        operations = self._operations / self._counted
        row |= {"bytes_per_second": round(bandwidth), "operations_per_second": round(operations)}
        if rates is not None:
            row["of_bandwidth"] = _rounded(bandwidth / rates.read_bandwidth)
            peaks = [rates.operations.get(kind) for kind in self._activations]
            if len(peaks) == 1 and peaks[0]:
                row["of_operations"] = _rounded(operations / peaks[0])
        return row


def _roofline(rates: MachineRates | None) -> Document | None:
    if rates is None:
        return None
    return {
        "read_bytes_per_second": round(rates.read_bandwidth),
        "operations_per_second": {name: round(value) for name, value in rates.operations.items()},
        "measured_while_busy": rates.busy,
    }


def _shares(seconds: dict[str, float], total: float) -> Document:
    return {
        name: {"seconds": _rounded(value), "share": _rounded(value / total) if total else 0.0}
        for name, value in seconds.items()
    }


def _rounded(value: float) -> float:
    return round(value, 6)


_STEPS = 1
"""The line of the steps in a trace."""


def chrome_trace(engine: Engine, counters: StepCounters) -> Document:
    """The records as Chrome's trace events: steps and their parts on one line, loops on a line for
    each thread. Lines are numbered from 1: in Perfetto thread 0 is another name of the process."""

    def named(what: str, thread: int, name: str) -> Document:
        return {"ph": "M", "name": what, "pid": 1, "tid": thread, "args": {"name": name}}

    title = f"{engine.model} ({engine.backend}, {engine.isa})"
    events = [named("process_name", _STEPS, title), named("thread_name", _STEPS, "steps")]
    loops = _STEPS + 1
    events += [named("thread_name", loops + i, f"thread {i}") for i in range(engine.threads)]
    for one in read_events(counters.events):
        event: Document = {"ph": "X", "pid": 1, "tid": _STEPS}
        event |= {"ts": one.begin / 1e3, "dur": one.ns / 1e3}
        part = counters.parts[one.part]
        if one.what == STEP:
            event |= {"name": "step", "args": {"rows": one.rows, "tokens": one.tokens}}
        elif one.what == LOOP:
            kernel = counters.kernel_names[one.kernel]
            weights = counters.weight_types.get(one.weight, "")
            event |= {"name": f"{kernel} {weights}".strip(), "tid": loops + one.thread}
            event["args"] = {"part": part} | ({"layer": one.layer} if one.layer >= 0 else {})
        else:
            event["name"] = part
            event["args"] = {"layer": one.layer} if one.layer >= 0 else {}
        events.append(event)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"cut_records": counters.cut_events},
    }


def text(found: Document) -> str:
    """A document for a terminal."""
    lines = [
        f"{found['model']}  {found['backend']} {found['isa']}, {found['threads']} threads, "
        f"watched for {found['seconds']:.1f} s",
        "",
        *_share_lines("time", found["time"].items()),
        "",
        *_share_lines("the engine's thread", found["engine_thread"].items()),
        *_share_lines("  of that, waiting for drafts of", found.get("drafters", {}).items()),
        "",
        _processors(found),
        *_roofline_lines(found["roofline"]),
    ]
    steps = found["steps"]
    if "note" in found:
        lines += ["", f"{steps['count']} steps; {found['note']}"]
    elif steps["count"]:
        each = steps["seconds"] / steps["count"]
        lines += [
            "",
            f"{steps['count']} steps of {each * 1e3:.2f} ms, with "
            f"{steps['rows'] / steps['count']:.1f} rows and "
            f"{steps['tokens'] / steps['count']:.1f} tokens each; threads were busy for "
            f"{steps['threads_busy']:.0%}",
            "",
            *_share_lines("parts of a step", ((one["part"], one) for one in found["parts"])),
            "",
            *_kernel_lines(found["kernels"]),
        ]
    else:
        lines += ["", "no step was computed"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _processors(found: Document) -> str:
    seconds, of = found["seconds"] or 1.0, found["processor_seconds"]
    return (
        f"processors  engine {of['engine'] / seconds:.2f} (its Python thread "
        f"{of['engine_thread'] / seconds:.2f}), API process {of['api'] / seconds:.2f}"
    )


def _roofline_lines(of: Document | None) -> list[str]:
    if of is None:
        return []
    peaks = [f"reads {of['read_bytes_per_second'] / 1e9:.1f} GB/s"]
    peaks += [
        f"{name} {value / 1e9:.0f} GOP/s" for name, value in of["operations_per_second"].items()
    ]
    busy = " (measured while steps ran: it can do more)" if of["measured_while_busy"] else ""
    return [f"machine     {', '.join(peaks)}{busy}"]


def _share_lines(title: str, rows: Iterable[tuple[str, Document]]) -> list[str]:
    shown = [(name.replace("_", " "), one) for name, one in rows]
    if not shown:
        return []
    width = max([20, *(len(name) for name, _ in shown)])
    return [
        title,
        *(
            f"  {name:<{width}} {one['share']:>6.1%} {one['seconds']:>9.3f} s  "
            f"{'█' * round(one['share'] * BAR)}"
            for name, one in shown
        ),
    ]


_HEAD = ("kernels", "share", "seconds", "busy", "GB/s", "of reads", "GOP/s", "of peak")


def _kernel_lines(kernels: list[Document]) -> list[str]:
    rows = [_HEAD]
    for one in kernels:
        name = " ".join(filter(None, (one["kernel"].replace("_", " "), one["weights"])))
        name += {"few": ", few rows", "many": ", many rows"}.get(one["rows"], "")
        busy, read = one["threads_busy"], one.get("of_bandwidth")
        rows.append(
            (
                f"  {name}",
                f"{one['share']:.1%}",
                f"{one['seconds']:.3f}",
                "-" if busy is None else f"{busy:.0%}",
                _billions(one.get("bytes_per_second")),
                "-" if read is None else f"{read:.0%}",
                _billions(one.get("operations_per_second")),
                f"{one['of_operations']:.0%}" if "of_operations" in one else "-",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return [
        "  ".join(
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _billions(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.1f}"
