"""What this process may use of the machine: CPUs and memory, containers' limits included."""

from __future__ import annotations

import math
import os
from pathlib import Path

from tidemill.base.free_memory import free_memory

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(root: Path = _CGROUP) -> int:
    """CPUs this process may keep busy: its affinity, bounded by the cgroup's CPU quota."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _words(root / "cpu.max", 2) or (
        _word(root / "cpu/cpu.cfs_quota_us"),
        _word(root / "cpu/cpu.cfs_period_us"),
    )
    if quota is not None and period is not None and quota > 0 and period > 0:
        cpus = min(cpus, max(1, math.floor(quota / period)))
    return max(1, cpus)


def available_memory(root: Path = _CGROUP) -> int:
    """Bytes this process can still allocate: what is free or reclaimable, within the cgroup."""
    free = free_memory()
    limit = _word(root / "memory.max")
    used, stat = _word(root / "memory.current"), root / "memory.stat"
    if limit is None:
        limit = _word(root / "memory/memory.limit_in_bytes")
        used, stat = _word(root / "memory/memory.usage_in_bytes"), root / "memory/memory.stat"
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _reclaimable(stat)))
    return int(free)


def total_memory(root: Path = _CGROUP) -> int:
    """Bytes this process could have if nothing else were there: the machine's, or the cgroup's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_word(root / "memory.max"), _word(root / "memory/memory.limit_in_bytes"))
    return min([total, *(limit for limit in limits if limit is not None)])


def _reclaimable(stat: Path) -> int:
    """Bytes of file cache that the kernel drops before it refuses memory."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(fields.get("inactive_file", fields.get("total_inactive_file", "0")))


def _word(path: Path) -> int | None:
    words = _words(path, 1)
    return words[0] if words else None


def _words(path: Path, count: int) -> tuple[int | None, ...] | None:
    """The first words of a file as integers (``max`` is None); None if there is no such file."""
    try:
        words = path.read_text().split()[:count]
    except OSError:
        return None
    if len(words) < count:
        return None
    return tuple(int(w) if w.lstrip("-").isdigit() else None for w in words)
