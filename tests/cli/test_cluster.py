"""`tidemill cluster`, as far as it goes without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidemill.base.errors import TidemillError
from tidemill.cli.main import app_of
from tidemill.cluster import operate

FILE = '[[models]]\nname = "brook"\nmin = 0\nmax = 4\n'


def _run(*arguments: str) -> None:
    app_of(["cluster"]).commands["cluster"].main([*arguments], standalone_mode=False)


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (file := tmp_path / "c.toml").write_text(FILE)
    for arguments in (["up", "--config", str(file)], ["status"], ["down"], ["scale", "brook", "2"]):
        with pytest.raises(TidemillError, match=r"tidemill\[ray\]"):
            _run(*arguments)


@pytest.mark.parametrize("engines", ["many", "-1", "1-", "3-x"])
def test_a_number_of_engines_is_one(engines: str) -> None:
    with pytest.raises(TidemillError, match="0-4"):
        _run("scale", "--", "brook", engines)


def test_a_file_that_is_wrong_is_known_before_ray_is_asked(tmp_path: Path) -> None:
    (file := tmp_path / "c.toml").write_text(FILE + "idle = 'soon'\n")
    with pytest.raises(TidemillError, match="idle"):
        _run("up", "--config", str(file))


def _status(ready: int, *, gateway: str = "ready", problem: str = "") -> dict[str, Any]:
    engines = [{"kind": "engine", "pool": "m", "phase": "ready", "url": "x"}] * ready
    door = {"kind": "gateway", "pool": "", "phase": gateway, "url": "http://g"}
    pool = {"min": 2, "desired": 2, "problem": problem}
    return {"pools": {"m": pool}, "processes": [*engines, door]}


@pytest.mark.parametrize(
    ("status", "done", "words"),
    [
        (_status(1), False, "1 of 2 engines ready"),
        (_status(2), True, "http://g"),
        (_status(2, gateway="starting"), False, "none ready"),
        (_status(0, problem="e failed: exit code 2"), False, "exit code 2"),
        ({"pools": {}, "processes": []}, False, ""),
    ],
)
def test_progress(status: dict[str, Any], done: bool, words: str) -> None:
    line, found = operate.progress(status)
    assert found is done and words in line


def test_nothing_of_it_is_imported_by_other_commands() -> None:
    code = (
        "import sys; from tidemill.cli.main import app_of; app_of([]);"
        "import tidemill.server.run, tidemill.gateway.run;"
        "sys.exit(str([m for m in sys.modules if m.startswith(('tidemill.cluster', 'ray'))]) "
        "if any(m.startswith(('tidemill.cluster', 'ray')) for m in sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
