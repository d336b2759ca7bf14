"""Time sources: a monotonic one for durations, wall-clock seconds for what users see."""

from __future__ import annotations

import time

monotonic = time.monotonic  # seconds; comparable between processes of one machine on Linux
wall = time.time  # seconds since the epoch
