"""Run `tidemill` so that it ends when its parent does: `python -m tidemill.cluster.child PID ...`.

The kernel sends SIGTERM when the thread that started this process ends, also if that was killed; so
no server outlives the actor that watches it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, arguments: list[str]) -> None:
    """Become `tidemill` with these arguments; returns only where the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        os.execv(sys.executable, [sys.executable, "-m", "tidemill", *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
