"""Prints what an extra of pyproject.toml needs, the base install included, one requirement a line;
with --debian, the Debian packages that the tests need.

`pip install -r` of it installs the extra without building the package again, which
`pip install -e '.[extra]'` would do.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

# A server that tests/helpers/postgres.py starts, and the browser of tests/ui.
DEBIAN = ("postgresql", "chromium")


def requirements(extra: str) -> list[str]:
    """The base install's requirements and the extra's."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


if __name__ == "__main__":
    print("\n".join(DEBIAN if sys.argv[1] == "--debian" else requirements(sys.argv[1])))
