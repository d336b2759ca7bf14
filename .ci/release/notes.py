"""The notes of a release, from CHANGELOG.md: `notes.py TAG`.

Fails unless TAG is `v` and the version of pyproject.toml, and that version's section has a date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def version() -> str:
    """The one place that says it."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def sections(text: str) -> dict[str, tuple[str, str]]:
    """Version -> what stands in brackets behind it, and its notes; newest first."""
    parts = re.split(r"^## (\S+) \(([^)]*)\)$", text, flags=re.MULTILINE)[1:]
    return {
        number: (when, notes.strip())
        for number, when, notes in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def notes_of(tag: str, text: str, current: str) -> str:
    """The notes. Raises ValueError where tag, version and changes do not agree."""
    if tag != f"v{current}":
        raise ValueError(f"the tag is {tag}, and pyproject.toml says {current}")
    when, notes = sections(text).get(current, ("", ""))
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", when):
        raise ValueError(f"CHANGELOG.md has no section `## {current} (YYYY-MM-DD)`")
    return notes


def main() -> int:
    """Returns the exit code."""
    try:
        print(notes_of(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), version()))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
