"""Run `tidemill` so that it ends with its parent: `python -m tidemill.cluster.child PID FD ...`

FD is a socket that listens, which it gets as service managers pass one; ``-``: none. The kernel
sends SIGTERM when the thread that started this process ends, also if that was killed; so no server
outlives the actor that watches it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_FIRST_FD = 3  # where service managers pass the first socket


def main(parent: int, listener: str, arguments: list[str]) -> None:
    """Become `tidemill` with these arguments; returns only where the parent is gone already."""
    if listener != "-":
        os.dup2(int(listener), _FIRST_FD)
        os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        os.execv(sys.executable, [sys.executable, "-m", "tidemill", *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
