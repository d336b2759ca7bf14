"""Logging set-up: one line per event on stderr, with the time, the level and the process's role."""

from __future__ import annotations

import logging
import sys

ROOT = "tidemill"


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module below ``tidemill``."""
    return logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")


def set_up_logging(role: str, level: str = "info") -> None:
    """Send Tidemill's log to stderr. `role` (``api``, ``engine``) is printed on every line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s %(levelname).1s {role} %(name)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
