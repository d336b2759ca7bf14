"""How much memory a process takes."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def process_bytes(pid: int, proc: Path = _PROC) -> int | None:
    """Bytes of memory of a process, pages shared by n processes counting as an n-th each (Linux:
    PSS; elsewhere its resident set). None if it has ended.

    Takes milliseconds per gigabyte, in which the process cannot change its mappings: not for a
    thread that must not wait.
    """
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
