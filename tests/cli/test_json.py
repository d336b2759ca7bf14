"""`--json`: one document on standard output, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill.cli import main
from tidemill.loading.locate import bundled_models


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def document(*arguments: str, stdin: str = "", code: int = 0) -> Any:
    found = CliRunner().invoke(main.app_of(arguments), [*arguments, "--json"], input=stdin)
    assert found.exit_code == code, (found.output, found.exception)
    return json.loads(found.stdout)


def test_the_library() -> None:
    made = document("create", "pirate", "--from", "brook", "--system", "You are a pirate.")
    assert (
        made["name"] == "pirate"
        and made["referenced"] is None
        and made["base"] == "brook"
        and len(made["digest"]) == 64
    )
    pulled = document("pull", str(bundled_models()["brook"]), "--as", "other")
    assert pulled["name"] == "other" and pulled["bytes"] > 1_000_000
    listed = {one["name"]: one for one in document("list")["models"]}
    assert {"pirate", "other", "brook"} <= listed.keys()
    assert listed["brook"]["digest"] is None and listed["pirate"]["digest"] == made["digest"]
    removed = document("rm", "pirate", "other", "--unfinished")
    assert removed["removed"].keys() == {"pirate", "other"}


def test_a_model() -> None:
    shown = document("show", "brook")
    assert shown["family"] == "qwen3" and shown["parameters"] == 4_329_472
    assert sum(one["bytes"] for one in shown["tensors"]) <= shown["bytes"]
    memory = shown["memory"]
    assert memory["total_one_request"] > memory["weights"] > 8_000_000
    assert memory["context"] == shown["context"]["usual"] == 4096


def test_the_machine_and_text() -> None:
    found = document("doctor", "--no-bandwidth")
    assert found["isas"][-1] == "portable" and found["threads"] >= 1
    assert found["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    tokens = document("tokenize", stdin="hi there")
    assert len(tokens["tokens"]) == len(tokens["texts"]) > 1
    assert document("packed", "--packed-cache", "empty")["entries"] == []


def test_a_deployment_file(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[[models]]\nsource = "brook"\nthreads = 0\n')
    found = document("config", "check", str(file), code=2)
    [problem] = found["problems"]
    assert not found["valid"] and problem["key"] == "models[0].threads"
    assert (problem["line"], problem["column"]) == (3, 11)
    file.write_text('[[models]]\nsource = "brook"\n')
    assert document("config", "check", str(file)) == {
        "valid": True, "problems": [], "names": ["brook"],
    }  # fmt: skip
