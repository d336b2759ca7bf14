"""Makes the sources of the site in build/docs: docs/, and references from the code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import reference

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def without_links_out(markdown: str, page: Path) -> str:
    """Files of the repository beyond docs/ are not part of the site: their names stay."""

    def shown(found: re.Match[str]) -> str:
        text, target = found[1], found[2].partition("#")[0]
        if "://" in target or not target:
            return found[0]
        inside = (page.parent / target).resolve().is_relative_to(DOCS)
        return found[0] if inside and not target.endswith(".toml") else text

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", shown, markdown)


def main() -> None:
    """Writes build/docs and build/mkdocs.yml anew."""
    sources = ROOT / "build" / "docs"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(DOCS, sources)
    for page in DOCS.rglob("*.md"):
        text = without_links_out(page.read_text(), page)
        (sources / page.relative_to(DOCS)).write_text(text)
    shutil.copy(Path(__file__).with_name("site.yml"), sources.with_name("mkdocs.yml"))
    (sources / "reference").mkdir()
    for name, text in reference.pages().items():
        (sources / "reference" / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main()
