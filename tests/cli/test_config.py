"""`tidemill config check` and `config show`: what they print, and how they end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidemill.cli.config import config

GOOD = """\
[server]
keep_alive = "5m"
[[models]]
name = "chat"
source = "brook"
aliases = ["gpt-4o-mini"]
"""


@pytest.fixture(autouse=True)
def _own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_API_KEY", raising=False)


def _config(command: str, folder: Path, text: str, *flags: str) -> Result:
    (folder / "t.toml").write_text(text)
    return CliRunner().invoke(
        config, [command, str(folder / "t.toml"), *flags], catch_exceptions=False
    )


def test_a_valid_file(tmp_path: Path) -> None:
    found = _config("check", tmp_path, GOOD)
    assert found.exit_code == 0, found.output
    assert "is valid: 1 model\n" in found.stdout and "names: chat, gpt-4o-mini" in found.stdout


def test_every_problem_is_a_line_with_its_place(tmp_path: Path) -> None:
    found = _config("check", tmp_path, GOOD + "threads = 0\nquantise = 'q8_0'\n")
    assert found.exit_code == 2 and found.stdout == ""
    file = f"{tmp_path}/t.toml"
    assert found.stderr.splitlines() == [
        f"{file}:7:11: models[0].threads: must be a whole number from 1 to 1024, got 0",
        f"{file}:8:1: models[0].quantise: is no key here; did you mean quantize?",
        f"{file}: 2 problems",
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("tool_format = 'odd'", "7:15: models[0].tool_format: is auto or one of "),
        ("reasoning_format = 'odd'", "7:20: models[0].reasoning_format: is auto or one of none,"),
        ("chat_template = './bad.jinja'", "7:17: models[0].chat_template: "),
        (
            "[[models]]\nsource = 'folder'",
            "8:10: models[1].source: is a name; for the path of that",
        ),
        ("[[models]]\nname = 'nix'", "8:8: models[1].name: 'nix' is no model of the library"),
        ("[[models]]\nsource = 'pypi:a'", "`tidemill pull pypi:a --as NAME` gets it"),
        ("[[models]]\nsource = 'https://a.example/b'", "8:10: models[1].source: "),
    ],
)
def test_what_other_rooms_know(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "bad.jinja").write_text("{% if %}")
    (tmp_path / "folder").mkdir()
    found = _config("check", tmp_path, f"{GOOD}{lines}\n")
    assert found.exit_code == 2 and message in found.stderr, found.stderr
    assert found.stderr.endswith(": 1 problem\n")


@pytest.mark.parametrize("scheme", ["https", "pypi"])
def test_passwords_in_addresses_are_not_repeated(tmp_path: Path, scheme: str) -> None:
    text = f"[[models]]\nname = 'a'\nsource = '{scheme}://user:velvet@host.example/b'\n"
    found = _config("check", tmp_path, text)
    assert "t.toml:3:10: models[0].source: " in found.stderr
    assert "***@host.example" in found.stderr and "velvet" not in found.stderr


def test_models_must_load_and_fit(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    found = _config("check", tmp_path, f"{GOOD}[[models]]\nsource = './bad.gguf'\n")
    assert f"{tmp_path}/t.toml:8:10: models[1].source: " in found.stderr and "bad" in found.stderr
    text = GOOD.replace("[server]", "[server]\nmemory = '10MiB'")
    found = _config("check", tmp_path, text)
    needed = re.search(r"t.toml:6:10: models\[0\].source: needs at least (\d+) MiB", found.stderr)
    assert needed is not None, found.stderr
    assert _config("check", tmp_path, text.replace("10MiB", "1GiB")).exit_code == 0
    two = text.replace("aliases", "pin = true\naliases").replace(
        "10MiB", f"{int(needed[1]) * 3 // 2}MiB"
    )
    two += "[[models]]\nname = 'b'\nsource = 'brook'\npin = true\n"
    found = _config("check", tmp_path, two)
    assert "t.toml:2:10: server.memory: pinned models need " in found.stderr, found.stderr
    assert _config("check", tmp_path, two.replace("pin = true\naliases", "aliases")).exit_code == 0


def test_flags_and_the_environment_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GOOD.replace("[server]", "[server]\nhost = '0.0.0.0'")
    assert "there is no API key" in _config("check", tmp_path, text).stderr
    assert _config("check", tmp_path, text, "--insecure").exit_code == 0
    assert "--limit: has no 'x'" in _config("check", tmp_path, GOOD, "--limit", "x=1").stderr
    monkeypatch.setenv("TIDEMILL_API_KEY", "velvet-hammer-velvet")
    assert _config("check", tmp_path, text).exit_code == 0
    shown = _config("show", tmp_path, text, "--changed", "--kv-memory", "1GiB").stdout
    lines = {tuple(map(str.strip, line.split("  # "))) for line in shown.splitlines()}
    assert ("# api_key: 1 (hidden)", "TIDEMILL_API_KEY") in lines
    assert ('kv_memory = "1GiB"', "--kv-memory") in lines
    assert "velvet" not in shown and "max_n" not in shown


def test_a_served_name_is_of_the_only_model(tmp_path: Path) -> None:
    flags = ("--served-name", "a", "--served-name", "b")
    found = _config("check", tmp_path, GOOD, *flags)
    assert "names: a, b\n" in found.stdout
    found = _config("check", tmp_path, f"{GOOD}[[models]]\nname = 'o/n'\n", *flags)
    assert "--served-name: belongs to one model, and there are 2; set name" in found.stderr


def test_show_as_json_and_without_a_file(tmp_path: Path) -> None:
    found = CliRunner().invoke(config, ["show", "--json", "--port", "7"], catch_exceptions=False)
    listed = {(row["table"], row["key"]): row for row in json.loads(found.stdout)}
    assert listed["server", "port"] == {
        **{"table": "server", "name": "", "key": "port", "value": "7"},
        **{"source": "flag", "origin": "--port"},
    }
    assert listed["limits", "max_n"]["source"] == "default"


def test_a_models_own_sampling_is_shown(tmp_path: Path) -> None:
    from helpers.tiny_folder import write_folder

    folder = write_folder(tmp_path / "m", generation_config__json={"temperature": 0.6, "top_k": 20})
    text = f"[[models]]\nsource = '{folder}'\n[models.sampling]\ntop_k = 3\n"
    shown = _config("show", tmp_path, text).stdout
    lines = {tuple(map(str.strip, line.split("  # "))) for line in shown.splitlines()}
    assert ("# temperature: 0.6", "the model's generation_config.json") in lines
    assert ("top_k = 3", f"{tmp_path}/t.toml:4:9") in lines


def test_a_gateway_s_file_is_checked_as_one(tmp_path: Path) -> None:
    text = '[[targets]]\nname = "a"\nurl = "http://a:1"\n'
    valid = _config("check", tmp_path, text)
    assert valid.exit_code == 0 and valid.stdout.endswith("gateway; targets: a\n")
    wrong = _config("check", tmp_path, text.replace("url", "ulr"))
    assert wrong.exit_code == 2 and "did you mean url?" in wrong.stderr
    as_json = json.loads(_config("check", tmp_path, "targets = 1", "--json").stdout)
    assert as_json["valid"] is False and "targets: expected" in as_json["problems"][0]["message"]
