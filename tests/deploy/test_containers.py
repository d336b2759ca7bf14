"""Container files and scripts: linted by the field's own linters."""

from __future__ import annotations

from pathlib import Path

from helpers.linting import lint

FOLDER = Path(__file__).parents[2] / "deploy" / "containers"


def test_container_files() -> None:
    lint("hadolint", *sorted(FOLDER.glob("Containerfile*")))


def test_scripts() -> None:
    lint("shellcheck", *sorted(FOLDER.glob("*.sh")))


def test_images_run_as_nobody_and_say_how_they_are() -> None:
    stages = (FOLDER / "Containerfile").read_text().split("\nFROM ")[1:]
    named = {stage.split("\n")[0].split(" AS ")[1]: stage for stage in stages}
    assert list(named) == ["build", "files", "cuda", "cpu"], "a build without --target is the last"
    files = named["files"]
    assert files.startswith("scratch "), "no shell and no package manager"
    assert "\nUSER 65532:65532\n" in files
    assert "\nHEALTHCHECK " in files
    for last in (named["cuda"], named["cpu"]):
        assert last.startswith("files ") and "\nCMD [" in last
        assert "\nUSER " not in last and "\nCOPY " not in last
