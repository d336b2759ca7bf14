"""Draws what benchmarks/plots.py sends on standard input; see there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tidemill", "font.size": 9})

import matplotlib.pyplot as plt  # noqa: E402

# Type -> bytes per weight as packed.
WEIGHT_BYTES = {"Q8_0": 34 / 32, "Q4_0": 18 / 32, "BF16": 2.0}


def roofline(lines: list[dict[str, Any]], path: Path) -> None:
    """Matrix products of the best instruction set: rate over operations per byte of weights."""
    best = lines[0]["isa"]
    of = [x for x in lines if x["isa"] == best and x["kernel"] == "gemm"]
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    read = median(x["read"] for x in of if x["read"])
    for name, size in WEIGHT_BYTES.items():
        points = [x for x in of if x["type"] == name]
        if not points:
            continue
        xs = [2 * x["rows"] / size for x in points]
        drawn = axes.loglog(
            xs, [x["gops"] for x in points], "o-", ms=4, label=f"{name}, M = 1 to 512"
        )
        peak = median(x["peak"] for x in points)
        axes.axhline(peak, ls=":", lw=1, color=drawn[0].get_color(), label=f"{name} registers only")
    ends = [1.0, 1000.0]
    axes.loglog(ends, [read * x for x in ends], "k--", lw=1, label=f"read, {read:.0f} GB/s")
    axes.set_xlabel("operations per byte of weights")
    axes.set_ylabel("GOP/s, one thread")
    axes.set_title(f"Matrix products beside the roofline ({best})")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    save(figure, path)


def growth(points: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Step time over batch size and over context."""
    figure, both = plt.subplots(1, 2, figsize=(8.6, 3.6))
    for axes, (name, label) in zip(
        both,
        (("batch", "sequences, 128 tokens each"), ("context", "tokens of context")),
        strict=True,
    ):
        of = points[name]
        xs = [p["x"] for p in of]
        axes.plot(xs, [1e3 * p["seconds"] for p in of], "o-", ms=4, label="a step")
        limits = [1e3 * p["roofline"] for p in of]
        axes.plot(xs, limits, "k--", lw=1, label="the machine: reading or multiplying")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(xs, [f"{x / 1024:.0f}k" if x >= 1024 else f"{x:.0f}" for x in xs])
        axes.set_yticks([20, 50, 100, 200, 500], ["20", "50", "100", "200", "500"])
        axes.minorticks_off()
        axes.set_xlabel(label)
        axes.set_ylabel("ms")
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=7)
    figure.suptitle("Growth of a decoding step, Qwen3-0.6B shape, Q8_0")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    measured = json.load(sys.stdin)
    for name, path in zip(("kernels", "growth"), map(Path, sys.argv[1:3]), strict=True):
        if name in measured:
            {"kernels": roofline, "growth": growth}[name](measured[name], path)


if __name__ == "__main__":
    main()
