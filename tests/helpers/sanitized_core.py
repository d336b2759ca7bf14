"""Pytest plugin: the native core from TIDEMILL_SANITIZED_CORE instead of the installed one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

NAME = "tidemill.backends.native._core"

_path = os.environ["TIDEMILL_SANITIZED_CORE"]
_loader = importlib.machinery.ExtensionFileLoader(NAME, _path)
_spec = importlib.util.spec_from_file_location(NAME, _path, loader=_loader)
assert _spec is not None
sys.modules[NAME] = importlib.util.module_from_spec(_spec)
_loader.exec_module(sys.modules[NAME])
