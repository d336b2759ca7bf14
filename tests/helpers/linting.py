"""The field's own linters of container files and scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def lint(tool: str, *files: Path) -> None:
    """Have a linter read files; skips where it is not installed."""
    found = shutil.which(tool, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run([found, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
