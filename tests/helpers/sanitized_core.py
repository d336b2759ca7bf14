"""Pytest plugin: the native modules of the build folder TIDEMILL_SANITIZED instead of the installed
ones."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

NAMES = ("tidemill.base._texts", "tidemill.backends.native._core")

for _name in NAMES:
    (_path,) = Path(os.environ["TIDEMILL_SANITIZED"]).glob(f"{_name.rpartition('.')[2]}*.so")
    _loader = importlib.machinery.ExtensionFileLoader(_name, str(_path))
    _spec = importlib.util.spec_from_file_location(_name, _path, loader=_loader)
    assert _spec is not None
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _loader.exec_module(sys.modules[_name])
