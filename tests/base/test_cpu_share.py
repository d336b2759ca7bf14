"""The priority of a process's session."""

from __future__ import annotations

from pathlib import Path

from tidemill.base.cpu_share import set_group_priority


def test_it_is_written_where_the_system_reads_it(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert set_group_priority(7, 5, tmp_path)
    assert (tmp_path / "7" / "autogroup").read_text() == "5\n"
    assert not set_group_priority(8, 5, tmp_path), "a process that has ended"
