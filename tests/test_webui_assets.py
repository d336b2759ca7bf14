"""The page's built files belong to its sources; `make webui-check` builds them again."""

from __future__ import annotations

import gzip
import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "webui"
BUILT = ROOT / "src" / "tidemill" / "webui"
SINGLE = (
    *("icon.svg", "index.html", "package-lock.json", "package.json", "tsconfig.json"),
    "vite.config.ts",
)


def test_the_built_files_are_as_new_as_the_sources() -> None:
    files = [f for f in (SOURCE / "src").rglob("*") if f.is_file()]
    names = sorted([*(f.relative_to(SOURCE).as_posix() for f in files), *SINGLE])
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + (SOURCE / name).read_bytes() + b"\0")
    found = (BUILT / "source.sha256").read_text().strip()
    assert found == digest.hexdigest(), "run `make webui`"


def test_no_file_of_the_page_names_another_machine_to_load_from() -> None:
    for file in BUILT.glob("index.html.gz"):
        assert b"//" not in gzip.decompress(file.read_bytes())


def test_licences_of_what_is_bundled_are_there() -> None:
    text = gzip.decompress((BUILT / "licences.txt.gz").read_bytes()).decode()
    for name in ("preact", "marked", "katex", "highlight.js", "uplot"):
        assert f"{name} " in text
    assert text.count("Permission") + text.count("Redistribution") >= 6


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (SOURCE / "package-lock.json").read_text()


def test_the_built_files_are_in_a_source_distribution_and_their_sources_are_not() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    excluded = project["tool"]["scikit-build"]["sdist"]["exclude"]
    # As in .gitignore, a name without a slash would exclude src/tidemill/webui too.
    assert "/webui" in excluded and "webui" not in excluded
