"""Where the library lies: ``TIDEMILL_HOME``, by default in the user's data directory."""

from __future__ import annotations

import os
from pathlib import Path

HOME_VARIABLE = "TIDEMILL_HOME"
MANIFESTS = "manifests"
COSTS = "costs"
"""Folder of what was measured of this machine (`tidemill calibrate`)."""


def default_home() -> Path:
    """``$TIDEMILL_HOME``, else ``tidemill`` in ``$XDG_DATA_HOME`` (default: ~/.local/share)."""
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    root = os.environ.get("XDG_DATA_HOME")
    data = Path(root) if root and os.path.isabs(root) else Path.home() / ".local" / "share"
    return data / "tidemill"


def has_models(home: Path) -> bool:
    """Whether the library of this folder may have models."""
    return (home / MANIFESTS).is_dir()
