"""Links between the documents lead somewhere, headings included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "training").glob("*.md")]
)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h) for h in headings)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link}: no such file"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}: no such heading"


def test_the_example_in_python_is_one_that_the_bundled_model_does_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [example] = [block for block in blocks if "import LLM" in block]
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    names["llm"].close()
    assert "Paris" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "docs/cli.md"])
def test_what_guides_name_is_there(name: str) -> None:
    """Paths and make targets of what newcomers follow; a word in capitals is theirs to choose."""
    text = (ROOT / name).read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"make ([a-z][\w-]+)", text):
        assert target in targets or not re.search(rf"[`$].*make {target}", text), target
    for path in re.findall(r"`((?:src|tests|csrc|docs|deploy|\.ci)/[\w./*-]+)`", text):
        chosen = re.sub(r"NAME|[A-Z]{4,}", "*", path)
        placeholder = chosen != path and (ROOT / path).parent.is_dir()
        assert placeholder or list(ROOT.glob(chosen)), path


def test_decisions_are_listed_one_page_each() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = {page.name for page in folder.glob("0*.md")}
    listed = re.findall(r"\]\((0[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert len(listed) == len(set(listed)) and set(listed) == pages
    for page in folder.glob("0*.md"):
        text = page.read_text()
        parts = ("**Decision.**", "**Why.**", "**Rejected.**", "**Costs.**")
        assert [part for part in parts if part in text] == list(parts), page.name
        assert len(text.splitlines()) <= 40, page.name
