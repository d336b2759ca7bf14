"""Manual pages: every command and flag is there, and roff reads them without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
from click.testing import CliRunner

from tidemill.cli import main
from tidemill.cli.environment import FIXED
from tidemill.cli.manual import EXIT_CODES, pages

ROOT = Path(__file__).resolve().parents[2]


def _flags(command: click.Command) -> set[str]:
    own = {opt for p in command.params if isinstance(p, click.Option) for opt in p.opts}
    return own.union(*(_flags(one) for one in getattr(command, "commands", {}).values()))


def test_every_command_and_flag_is_in_its_page() -> None:
    app = main.app_of([])
    found = pages(app)
    assert found.keys() == {"tidemill", *(f"tidemill-{name}" for name in app.commands)}
    for name, command in app.commands.items():
        text = found[f"tidemill-{name}"].replace("\\-", "-")
        assert all(flag in text for flag in _flags(command)), name
        assert "Sentinel" not in text and " object at " not in text
        assert f"tidemill-{name} (1)" in found["tidemill"].replace("\\-", "-")
    assert all(name in found["tidemill"] for name in FIXED)
    assert "Variable: TIDEMILL_PORT. Default: 8000." in found["tidemill-serve"]


def test_nothing_is_a_request_of_roff_by_accident() -> None:
    known = {"TH", "nh", "ad", "SH", "SS", "TP", "PP", "B", "BR", "I", "br"}
    for name, text in pages(main.app_of([])).items():
        requests = set(re.findall(r"^[.'](\w*)", text, re.MULTILINE))
        assert requests <= known, (name, requests - known)
        assert not re.search(r"\\(?![-efI&])", text), name


def test_groff_reads_every_page(tmp_path: Path) -> None:
    done = CliRunner().invoke(main.app_of(["man"]), ["man", "--to", str(tmp_path)])
    files = sorted(tmp_path.glob("*.1"))
    assert f"{len(files)} pages written" in done.stdout
    if groff := shutil.which("groff"):
        read = subprocess.run(
            [groff, "-man", "-Tascii", "-ww", *map(str, files)], capture_output=True, text=True
        )
        assert read.stderr == "" and "TIDEMILL-SERVE" in read.stdout


def test_exit_codes_are_those_of_the_document() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.*?) \|$", page, re.MULTILINE))
    assert {int(code): text for code, text in rows.items()} == EXIT_CODES
