"""A smaller share of the processors for a while, for a process that must not slow others down."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")

# Two groups that both want all processors share them 3 to 1.
BACKGROUND, NORMAL = 5, 0


def set_group_priority(pid: int, nice: int, proc: Path = _PROC) -> bool:
    """Set the priority of a process's session among other sessions, as a nice value from 0 to 19.

    Unlike a thread's priority it may be raised again without a privilege. Linux divides the
    processors by session first where its automatic groups are on (sched_autogroup_enabled) and the
    processes are in no control group of their own.

    Returns:
        Whether the system took it.
    """
    try:
        (proc / str(pid) / "autogroup").write_text(f"{nice}\n")
    except OSError:
        return False
    return True
