"""Run once more, alone, the few tests that failed: a machine shared with others has slow moments.

Not in the rooms where a result is a computation: there a test that fails once is wrong. What
passes only now is named at the end, so that it is mended and not lived with.

Usage: .ci/again.py PYTEST_ARGUMENT...   after a run of pytest that failed; 0 if all of it passes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CACHE = Path(".pytest_cache/v/cache/lastfailed")
MOST = 3
# Rooms whose tests start processes, wait for them, or read clocks.
TIMED = ("bench", "cli", "clients", "engine", "gateway", "library", "server", "store", "telemetry")


def may_run_again(failed: list[str]) -> bool:
    """Whether these tests, and no more than `MOST`, are all in rooms where time plays a part."""
    rooms = tuple(f"tests/{room}/" for room in TIMED)
    return 0 < len(failed) <= MOST and all(test.startswith(rooms) for test in failed)


def main(arguments: list[str]) -> int:
    """See the module's text."""
    failed = sorted(json.loads(CACHE.read_text())) if CACHE.exists() else []
    if not may_run_again(failed):
        return 1
    print("once more, alone:", *failed, sep="\n  ", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", *failed, *arguments], check=False
    )
    if done.returncode == 0:
        print("PASSED ONLY ALONE (mend these):", *failed, sep="\n  ")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
