"""Free memory, as the system says it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tidemill.base.free_memory import free_memory


def test_it_is_what_psutil_says() -> None:
    assert free_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.1)


@pytest.mark.parametrize("content", ["", "MemAvailable:\n", "MemAvailable: many kB\n", None])
def test_where_it_is_not_said_psutil_is_asked(tmp_path: Path, content: str | None) -> None:
    source = tmp_path / "meminfo"
    if content is not None:
        source.write_text(content)
    assert free_memory(source) == pytest.approx(psutil.virtual_memory().available, rel=0.1)


def test_the_line_is_found(tmp_path: Path) -> None:
    source = tmp_path / "meminfo"
    source.write_text("MemTotal:  9 kB\nMemFree:  2 kB\nMemAvailable:  7 kB\nBuffers: 1 kB\n")
    assert free_memory(source) == 7 * 1024
