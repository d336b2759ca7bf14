"""Rates of every kernel, weight type and number of rows, against the machine's two limits.

Builds `csrc/tests/kernel_check` and runs its benchmark for each instruction set that this machine
runs. One thread, in processor time, and products of few rows by all threads together; each figure
is a median of calls taken in turn with a plain read of as many bytes, by as many threads, and with
the register-only peak of the instruction that the table multiplies with, so that shares mean
something on a shared machine. Writes .work/kernels.json and a table into
the machine's page in docs/side_by_side.

    .venv/bin/python benchmarks/kernels.py [--isa amx,avx512] [--filter Q8_0]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import harness

from tidemill.backends import native

RESULT = harness.WORK / "kernels.json"
BUILD = harness.WORK / "kernels" / "build"
ROWS = (1, 2, 4, 8, 16, 32, 64, 512)
ROWS_TOGETHER = (1, 2, 4, 8, 16)
POSITIONS = (2, 3, 4, 8, 16, 32, 64)
LONGER = 1.15  # times what more rows take: fewer that take so long are computed in a wrong way
MEMORY_BOUND = 8  # rows up to which a matrix product waits for memory rather than arithmetic

# Types of 4 to 8 bits -> the type of that width whose rate theirs is held against; at least so much
# of its rate at 16 rows, and of the plain read at one, which a step computes by all threads.
SAME_WIDTH = {
    "Q8_0": "Q8_0", "I8": "Q8_0", "Q6_K": "Q8_0", "Q5_K": "Q8_0",
    "Q4_0": "Q4_0", "Q4_K": "Q4_0", "MXFP4": "Q4_0", "IQ4_NL": "Q4_0",
}  # fmt: skip
RATE_AT_16, READ_AT_1 = 0.6, 0.8

Line = dict[str, Any]


def build() -> str:
    """The benchmark program's path, brought up to date."""
    configure = ["cmake", "-S", str(harness.ROOT / "csrc" / "tests"), "-B", str(BUILD)]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    make = ["cmake", "--build", str(BUILD), "--target", "kernel_check"]
    make += ["--parallel", str(harness.threads())]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return str(BUILD / "kernel_check")


def measure(program: str, isa: str, what: str) -> list[Line]:
    """Everything one instruction set's table was measured at."""
    done = subprocess.run(
        [program, "bench", isa, what, str(harness.threads())],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def int8_peak(program: str) -> float:
    """Operations per second of all threads together that multiply int8 in registers alone."""
    command = [program, "peak", native.available_isas()[0], str(harness.threads())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout) * 1e9


def _unique(lines: Iterable[Line], key: str) -> list[str]:
    return list(dict.fromkeys(line[key] for line in lines))


def _gemm_cell(line: Line) -> str:
    if line["rows"] <= MEMORY_BOUND:
        return f"{line['gops']:.0f} ({line['gbs'] / line['read']:.0%})"
    share = f" ({line['gops'] / line['peak']:.0%})" if line["peak"] else ""
    return f"{line['gops']:.0f}{share}"


def _grid(
    lines: list[Line], columns: list[Any], cell: Callable[[Line], str], first: str, unit: str
) -> list[str]:
    """A Markdown table: a row per instruction set and type, a column per number of rows."""
    text = ["", f"| {first} | " + " | ".join(f"{c} {unit}".strip() for c in columns) + " |"]
    text.append("|---" * (len(columns) + 1) + "|")
    for isa in _unique(lines, "isa"):
        of_isa = [line for line in lines if line["isa"] == isa]
        for name in _unique(of_isa, "label"):
            found = {line["column"]: line for line in of_isa if line["label"] == name}
            cells = [cell(found[c]) if c in found else "" for c in columns]
            text.append(f"| {isa} {name} | " + " | ".join(cells) + " |")
    return text


def _attention(lines: list[Line], kernel: str, column: str) -> list[Line]:
    return [
        {**x, "label": f"{x['type']} KV", "column": x[column]}
        for x in lines
        if x["kernel"] == f"{kernel} attention" and (column == "block" or x["block"] == 32)
    ]


def longer_than_more(lines: list[Line]) -> list[str]:
    """Where a kernel takes longer than for the next larger number of rows in the table."""
    found = []
    for isa in _unique(lines, "isa"):
        for name in _unique(lines, "label"):
            of = [line for line in lines if (line["isa"], line["label"]) == (isa, name)]
            of.sort(key=lambda line: line["column"])
            found += [
                f"{isa} {name} at {fewer['column']} ({fewer['ms'] / more['ms']:.1f} times)"
                for fewer, more in pairwise(of)
                if fewer["ms"] > LONGER * more["ms"]
            ]
    return found


def _longer(lines: list[Line]) -> list[str]:
    found = ", ".join(longer_than_more(lines)) or "none"
    return ["", f"Longer than the next more of them in the table: {found}."]


def _rule(gemm: list[Line], together: list[Line]) -> list[str]:
    """Which types of 4 to 8 bits are as fast as their width allows, by the best instruction set."""
    best = gemm[0]["isa"]
    at = {(x["type"], x["rows"]): x for x in gemm if x["isa"] == best}
    shared = {
        x["type"]: x["gbs"] / x["read"] for x in together if (x["isa"], x["rows"]) == (best, 1)
    }
    text = [
        "",
        f"Types of 4 to 8 bits by {best}: at least {RATE_AT_16:.0%} of the rate of Q8_0 or Q4_0, "
        f"whichever has their width, at 16 rows, and {READ_AT_1:.0%} of the read at one, by all "
        "threads.",
        "",
        "| weights | beside | GOP/s at 16 rows | of its rate | of the read at 1 row, all threads "
        "| one thread | kept |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, other in SAME_WIDTH.items():
        many, one = at[name, 16], at[name, 1]
        rate = many["gops"] / at[other, 16]["gops"]
        read = one["gbs"] / one["read"]
        kept = "yes" if rate >= RATE_AT_16 and shared[name] >= READ_AT_1 else "**no**"
        text.append(
            f"| {name} | {other} | {many['gops']:.0f} | {rate:.0%} | {shared[name]:.0%} "
            f"| {read:.0%} | {kept} |"
        )
    return text


def _peaks(lines: list[Line]) -> str:
    """Medians of the register-only peaks beside them, by instruction set and type."""
    text = []
    for isa in _unique(lines, "isa"):
        of_isa = [x for x in lines if x["isa"] == isa]
        medians = [
            f"{kind} {statistics.median(x['peak'] for x in of_isa if x['type'] == kind):.0f}"
            for kind in _unique(of_isa, "type")
        ]
        text.append(f"{isa}: {', '.join(medians)}")
    return "; ".join(text)


def table(lines: list[Line]) -> str:
    """The Markdown of all lines."""
    gemm = [{**x, "label": x["type"], "column": x["rows"]} for x in lines if x["kernel"] == "gemm"]
    together = [x for x in lines if x["kernel"] == "gemm together"]
    text = [
        harness.machine_line("one thread"),
        "",
        "Matrix products, N = 4096, K = 2048: GOP/s by rows (M). In parentheses: up to "
        f"{MEMORY_BOUND} rows the share of a plain read beside it, from there on the share of "
        "the register-only peak beside it.",
        *_grid(gemm, list(ROWS), _gemm_cell, "table, weights", "rows"),
        *_longer(gemm),
        "",
        f"Register-only peaks of the same runs, GOP/s: {_peaks(gemm)}.",
        "",
        f"The same by {harness.threads()} threads together: GOP/s, and the share of a plain read "
        f"by as many, beyond {MEMORY_BOUND} rows of their register-only peak.",
        *_grid(
            [{**x, "label": x["type"], "column": x["rows"]} for x in together],
            list(ROWS_TOGETHER), _gemm_cell, "table, weights", "rows",
        ),
        "",
        f"Register-only peaks of all threads together, GOP/s: {_peaks(together)}.",
        *(_rule(gemm, together) if set(SAME_WIDTH) <= {x["type"] for x in gemm} else []),
        "",
        "Decode attention over 4096 positions (16 heads, 8 KV heads of 128): share of the read "
        "beside it, by block size.",
    ]  # fmt: skip
    decode = _attention(lines, "decode", "block")
    text += _grid(
        decode, [16, 32, 128], lambda x: f"{x['gbs'] / x['read']:.0%}", "table, cache", "tokens"
    )
    text += [
        "",
        "The last positions of 4096 computed together (a chunk, or drafts verified): time in reads "
        "of the cache, and GFLOP/s, by positions; blocks of 32.",
    ]
    chunk = _attention(lines, "chunk", "rows")
    text += _grid(
        chunk, list(POSITIONS), lambda x: f"{x['read'] / x['gbs']:.1f} ({x['gops']:.0f})",
        "table, cache", "",
    )  # fmt: skip
    text += _longer(chunk)
    text += ["", "Prefill attention, causal operations counted: GFLOP/s by tokens, blocks of 32."]
    prefill = _attention(lines, "prefill", "rows")
    text += _grid(prefill, [128, 512, 2048], lambda x: f"{x['gops']:.0f}", "table, cache", "tokens")
    return "\n".join(text)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--isa", default=",".join(native.available_isas()))
    parser.add_argument("--filter", default="", help="part of a type's name: only those")
    args = parser.parse_args()
    program = build()
    lines: list[Line] = []
    for isa in args.isa.split(","):
        begun = time.monotonic()
        lines += measure(program, isa, args.filter)
        print(f"{isa}: {time.monotonic() - begun:.0f} s", flush=True)
    text = table(lines)
    print(text)
    if args.filter:
        return
    RESULT.write_text(json.dumps(lines, indent=1))
    harness.write_section(f"kernels {harness.machine_kind()}", text, harness.machine_page())


if __name__ == "__main__":
    main()
