"""How much memory a process takes."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def process_bytes(pid: int, proc: Path = _PROC) -> int | None:
    """Bytes of memory of a process and those it started, pages shared by n processes counting as an
    n-th each (Linux: PSS; elsewhere the resident set of the process alone). None if it has ended.

    Takes milliseconds per gigabyte, in which the process cannot change its mappings: not for a
    thread that must not wait.
    """
    found = _proportional(pid, proc)
    if found is not None:
        others = (_proportional(child, proc) or 0 for child in _descendants(pid, proc))
        return found + sum(others)
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def _proportional(pid: int, proc: Path) -> int | None:
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _descendants(pid: int, proc: Path) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting:
        threads = (proc / str(waiting.pop()) / "task").glob("*/children")
        for thread in threads:
            try:
                children = [int(word) for word in thread.read_text().split()]
            except (OSError, ValueError):  # the thread has ended
                continue
            waiting += children
            found += children
    return found
