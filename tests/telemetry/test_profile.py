"""A profile as a document, as text and as a trace."""

from __future__ import annotations

import struct

import pytest

from tidemill.contract.profile import (
    LOOP,
    PART,
    STEP,
    EngineProfile,
    KernelTime,
    MachineRates,
    StepCounters,
)
from tidemill.telemetry.profile import Engine, chrome_trace, document, text

ENGINE = Engine("tiny", "native", "avx2", 2)

KERNELS = (
    KernelTime("attention", "product", "Q8_0", "int8", True, 10, 1.0, 1.6, 4 * 10**9, 8 * 10**9),
    KernelTime("attention", "elementwise", "", "", False, 20, 0.5, 0.5, 0, 0),
    KernelTime("head", "product", "Q8_0", "int8", True, 5, 1.0, 2.0, 6 * 10**9, 12 * 10**9),
    KernelTime("head", "product", "BF16", "bfloat16", False, 5, 0.5, 1.0, 10**9, 10**12),
    KernelTime("await_masks", "between_loops", "", "", False, 3, 0.25, 0.25, 0, 0),
    KernelTime("other", "between_loops", "", "", False, 30, 0.75, 0.75, 0, 0),
)
RATES = MachineRates(read_bandwidth=10e9, operations={"bfloat16": 4e12})


def profile(**changes: object) -> EngineProfile:
    values: dict[str, object] = {
        "seconds": 10.0,
        "steps": 100,
        "counters": StepCounters(steps=100, rows=400, tokens=500, seconds=4.0, kernels=KERNELS),
        "idle_seconds": 5.0,
        "waiting_seconds": 3.0,
        "submitting_seconds": 0.5,
        "thread_cpu_seconds": 1.25,
        "process_cpu_seconds": 6.0,
        "rates": RATES,
    }
    return EngineProfile(**{**values, **changes})  # type: ignore[arg-type]


def test_what_was_watched_is_told_whole() -> None:
    found = document(ENGINE, profile(), 0.5)
    assert {name: one["seconds"] for name, one in found["time"].items()} == {
        "steps": 4.0,
        "between_steps": 1.0,
        "idle": 5.0,
    }
    thread = {name: one["seconds"] for name, one in found["engine_thread"].items()}
    assert thread == {"waiting": 3.0, "submitting": 0.5, "scheduling": 1.5, "idle": 5.0}
    assert found["processor_seconds"] == {"engine": 6.0, "engine_thread": 1.25, "api": 0.5}
    assert found["steps"]["threads_busy"] == pytest.approx(6.1 / 8, abs=1e-6)
    for table in ("parts", "kernels", "parts_by_kernel"):
        assert sum(one["seconds"] for one in found[table]) == pytest.approx(4.0)
        assert sum(one["share"] for one in found[table]) == pytest.approx(1.0)
    assert [one["part"] for one in found["parts"]] == ["attention", "head", "other", "await_masks"]


def test_what_drafters_took_is_part_of_waiting() -> None:
    assert "drafters" not in document(ENGINE, profile(), 0.0)
    found = document(ENGINE, profile(drafting={"draft": 1.0}), 0.0)
    assert found["drafters"] == {"draft": {"seconds": 1.0, "share": 0.1}}
    [line] = [one for one in text(found).splitlines() if one.startswith("  draft ")]
    assert line.split()[:3] == ["draft", "10.0%", "1.000"]


def test_rates_are_those_of_what_is_counted_beside_the_machines() -> None:
    found = document(ENGINE, profile(), 0.0)
    by_kernel = {(one["kernel"], one["weights"], one["rows"]): one for one in found["kernels"]}
    product = by_kernel["product", "Q8_0", "few"]
    assert product["seconds"] == 2.0 and product["bytes_per_second"] == 5 * 10**9
    assert product["of_bandwidth"] == 0.5 and product["threads_busy"] == 0.9
    assert "of_operations" not in product  # the machine's are not known for int8
    many = by_kernel["product", "BF16", "many"]
    assert many["operations_per_second"] == 2 * 10**12 and many["of_operations"] == 0.5
    assert "bytes_per_second" not in by_kernel["elementwise", "", ""]
    assert by_kernel["waiting", "", ""]["seconds"] == 0.25
    attention = next(one for one in found["parts"] if one["part"] == "attention")
    assert attention["bytes_per_second"] == 4 * 10**9  # norms and the like are not counted


def test_a_backend_that_counts_nothing_tells_what_the_engine_knows() -> None:
    found = document(Engine("tiny", "torch", "", 2), profile(counters=None, rates=None), 0.0)
    assert found["time"]["steps"]["seconds"] == 3.0 and found["steps"] == {"count": 100}
    assert "the torch backend counts no kernels" in text(found) and "kernels" not in found


def test_text_has_a_line_for_every_row_and_says_how_the_machine_was_measured() -> None:
    found = document(ENGINE, profile(), 0.0)
    shown = text(found)
    lines = shown.splitlines()
    assert lines[0] == "tiny  native avx2, 2 threads, watched for 10.0 s"
    assert "machine     reads 10.0 GB/s, bfloat16 4000 GOP/s" in lines
    [line] = [line for line in lines if line.startswith("  product Q8_0, few rows")]
    assert line.split()[-7:] == ["50.0%", "2.000", "90%", "5.0", "50%", "10.0", "-"]
    assert "100 steps of 40.00 ms, with 4.0 rows and 5.0 tokens each" in shown
    busy = MachineRates(read_bandwidth=1e9, busy=True)
    assert "it can do more" in text(document(ENGINE, profile(rates=busy), 0.0))
    nothing = StepCounters(steps=0, rows=0, tokens=0, seconds=0.0, kernels=())
    assert "no step was computed" in text(document(ENGINE, profile(counters=nothing), 0.0))


def test_a_trace_has_a_line_of_steps_and_one_for_each_thread() -> None:
    def event(*values: int) -> bytes:
        return struct.pack("=qqiihhbbbb", *values)

    counters = StepCounters(
        steps=1, rows=2, tokens=3, seconds=0.1, kernels=(), cut_events=4,
        events=event(2_500, 500, 0, 0, 1, 7, LOOP, 1, 1, 3)
        + event(2_000, 1_000, 0, 0, 0, 7, PART, 1, 0, -1)
        + event(1_000, 9_000, 2, 3, 0, -1, STEP, 0, 0, -1),
        parts=("other", "attention"), kernel_names=("between_loops", "product"),
        weight_types={3: "Q8_0"},
    )  # fmt: skip
    found = chrome_trace(ENGINE, counters)
    assert found["otherData"] == {"cut_records": 4}
    names = {one["tid"]: one["args"]["name"] for one in found["traceEvents"] if one["ph"] == "M"}
    assert names == {1: "steps", 2: "thread 0", 3: "thread 1"}
    # Perfetto takes thread 0 for another name of the process, and drops what overlaps then.
    assert all(one["tid"] > 0 for one in found["traceEvents"])
    spans = [one for one in found["traceEvents"] if one["ph"] == "X"]
    assert [(one["name"], one["tid"], one["ts"], one["dur"]) for one in spans] == [
        ("product Q8_0", 3, 2.5, 0.5),
        ("attention", 1, 2.0, 1.0),
        ("step", 1, 1.0, 9.0),
    ]
    assert [one["args"] for one in spans] == [
        {"part": "attention", "layer": 7},
        {"layer": 7},
        {"rows": 2, "tokens": 3},
    ]
