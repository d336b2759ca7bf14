"""The memory of a process and of those it started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tidemill.base.process_memory import process_bytes


def _process(proc: Path, pid: int, pss: int, *threads: str) -> None:
    folder = proc / str(pid)
    for number, children in enumerate(threads):
        task = folder / "task" / str(pid + number)
        task.mkdir(parents=True)
        (task / "children").write_text(children)
    (folder / "smaps_rollup").write_text(f"00400000 [rollup]\nRss: 9999 kB\nPss: {pss} kB\n")


def test_processes_that_it_started_count_too(tmp_path: Path) -> None:
    _process(tmp_path, 10, 100, "11 12 ", "13 ")
    _process(tmp_path, 11, 20, "")
    _process(tmp_path, 12, 3, "14 ")
    _process(tmp_path, 14, 7, "")
    _process(tmp_path, 99, 5000, "")  # 13 has ended, and this is another's
    assert process_bytes(10, tmp_path) == 130 * 1024
    assert process_bytes(12, tmp_path) == 10 * 1024


def test_this_process_is_measured_and_an_ended_one_is_not() -> None:
    before = process_bytes(os.getpid())
    assert before is not None
    held = bytearray(os.urandom(1)) * (64 * 2**20)
    after = process_bytes(os.getpid())
    assert after is not None and after > before + 48 * 2**20, len(held)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_bytes(ended.pid) is None
