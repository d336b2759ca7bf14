"""What the make targets run beside the suite at least finds what it imports: a helper that was
renamed showed only when somebody ran them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("test_")
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_finds_what_it_imports(name: str) -> None:
    importlib.import_module(f"oracles.{name}")
