"""The summary of the benchmarks: from finished cells to a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "benchmarks")]

from rows import Outcome, Row, Target  # noqa: E402
from summary import table  # noqa: E402


def test_a_missed_target_is_bold_and_what_was_not_run_is_a_dash(tmp_path: Path) -> None:
    cells = {
        "idle": Outcome([Row("idle", "idle", "", reached=0.01, target=Target(0.005, "%", True))]),
        "memory": Outcome([Row("memory", "m", "", reached=113, target=Target(250, "MB", True))]),
    }
    kept = {name: cell.to_json() for name, cell in cells.items()}
    (tmp_path / "amx-family6.json").write_text(json.dumps(kept))
    lines = table(tmp_path).splitlines()
    assert lines[0] == "| work | target | [Xeon, AMX](side_by_side/amx-family6.md) |"
    assert "| idle: share of one core | ≤ 0.5 % | **1 %** |" in lines
    assert "| memory beyond weights and KV cache | ≤ 250 MB | 113 MB |" in lines
    assert "| process start to first token, later |  | - |" in lines
    assert lines[-1].endswith("| 1 of 2 |")
