"""Time sources: a monotonic one for durations, wall-clock seconds for what users see."""

from __future__ import annotations

import time

# Seconds; comparable between processes of one machine on Linux. Whatever waits or expires reads
# this: the other jumps when somebody sets the clock.
monotonic = time.monotonic
wall = time.time  # seconds since the epoch
thread_cpu = time.thread_time  # seconds that this thread has computed; slow to ask for
