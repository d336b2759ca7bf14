"""Where data lies that a clone may have beside it: real vocabularies, published chat templates."""

from __future__ import annotations

from pathlib import Path

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"
PUBLISHED_TEMPLATES = sorted((SHARED_DATA / "templates").glob("*.jinja"))
"""Files of published chat templates; none in a fresh clone."""
