"""How much memory the machine has left."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def free_memory(source: Path = _MEMINFO) -> int:
    """Bytes of the machine's memory that are free or that the system gives up at once.

    Read where Linux says it; other systems are asked through psutil, which takes a megabyte and
    some milliseconds to import.
    """
    try:
        for line in source.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    import psutil

    return int(psutil.virtual_memory().available)
