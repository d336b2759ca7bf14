"""Which failed tests run once more."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_only_a_few_and_only_where_time_plays_a_part() -> None:
    spec = importlib.util.spec_from_file_location("again", ROOT / ".ci" / "again.py")
    assert spec is not None and spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert all((ROOT / "tests" / room).is_dir() for room in again.TIMED)
    slow = "tests/server/test_x.py::test_a[1]"
    assert again.may_run_again([slow])
    assert not again.may_run_again([])
    assert not again.may_run_again([slow] * 4)
    for computed in ("backends/test_native_invariance.py", "test_llm.py", "promises/test_same.py"):
        assert not again.may_run_again([slow, f"tests/{computed}::test_b"])
