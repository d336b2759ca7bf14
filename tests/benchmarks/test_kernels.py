"""The table of kernels' own logic: which figures contradict each other."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]

from kernels import Line, longer_than_more  # noqa: E402


def _lines(label: str, ms: dict[int, float], isa: str = "avx2") -> list[Line]:
    return [{"isa": isa, "label": label, "column": rows, "ms": t} for rows, t in ms.items()]


def test_fewer_rows_that_take_longer_than_more_are_told() -> None:
    lines = _lines("BF16 KV", {8: 2.8, 4: 4.3, 16: 4.4})
    lines += _lines("I8 KV", {4: 4.5, 8: 4.4, 16: 9.0})
    assert longer_than_more(lines) == ["avx2 BF16 KV at 4 (1.5 times)"]


def test_tables_are_not_compared_with_each_other() -> None:
    assert not longer_than_more(_lines("I8", {1: 3.0, 2: 3.1}) + _lines("I8", {1: 1.0}, "amx"))
