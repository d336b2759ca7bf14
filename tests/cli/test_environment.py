"""Every flag has its variable, one precedence holds, and what is no variable is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tidemill.cli import main
from tidemill.cli.declared import command, option
from tidemill.cli.environment import (
    FIXED,
    is_service_link,
    name_variables,
    unknown_variables,
    variables_of,
)
from tidemill.cli.serve import serve

ROOT = Path(__file__).resolve().parents[2]


def _options(app: click.Command) -> list[click.Option]:
    own = [p for p in app.params if isinstance(p, click.Option)]
    return own + [p for c in getattr(app, "commands", {}).values() for p in _options(c)]


def test_every_flag_of_every_command_has_a_variable_of_one_meaning() -> None:
    flags: dict[str, set[str]] = {}
    for name, one in main.app_of([]).commands.items():
        for parameter in _options(one):
            assert isinstance(parameter.envvar, str), (name, parameter.name)
            flags.setdefault(parameter.envvar, set()).add(max(parameter.opts, key=len))
    assert all(len(opts) == 1 for opts in flags.values()), flags
    assert not flags.keys() & FIXED.keys()
    for name in ("PORT", "RUN_TEMPERATURE", "KEYS_CREATE_ROLE", "PS_JSON", "SERVED_NAME", "CONFIG"):
        assert f"TIDEMILL_{name}" in flags


def test_flags_of_serve_have_one_variable_wherever_they_are() -> None:
    of_serve = dict(variables_of(command("serve", serve)))
    assert len(of_serve) == len(serve.__defaults__ or ())
    commands = main.app_of([]).commands
    for name in ("config", "batch"):
        found = {v for v, _ in variables_of(commands[name])}
        assert {"TIDEMILL_PORT", "TIDEMILL_THREADS"} & found
        shared = {v for v in found if not v.startswith(f"TIDEMILL_{name.upper()}_")}
        assert shared <= of_serve.keys()


def test_variables_that_the_code_reads_are_documented() -> None:
    read = set()
    for file in (ROOT / "src").rglob("*.py"):
        read |= set(re.findall(r'"(TIDEMILL_[A-Z_]*[A-Z])"', file.read_text()))
    flags = {v for v, _ in variables_of(main.app_of([]))}
    assert read <= flags | FIXED.keys()
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert all(f"`{name}`" in page for name in FIXED)


@pytest.mark.parametrize(
    ("flags", "variable", "in_file", "threads", "origin"),
    [
        (("--threads", "1"), "2", "3", "1", "--threads"),
        ((), "2", "3", "2", "TIDEMILL_THREADS"),
        ((), "", "3", "3", "file"),
        ((), None, "3", "3", "file"),
        ((), None, None, None, None),
    ],
)
def test_one_precedence(
    flags: tuple[str, ...],
    variable: str | None,
    in_file: str | None,
    threads: str | None,
    origin: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    if variable is not None:
        monkeypatch.setenv("TIDEMILL_THREADS", variable)
    file = tmp_path / "t.toml"
    file.write_text('[[models]]\nsource = "brook"\n' + (f"threads = {in_file}" if in_file else ""))
    app = main.app_of(["config"])
    found = CliRunner().invoke(app, ["config", "show", str(file), "--json", *flags])
    [row] = [one for one in json.loads(found.stdout) if one["key"] == "threads"]
    if threads is None:
        assert row["source"] == "default"
    else:
        assert row["value"] == threads
        assert row["origin"] == (f"{file}:3:11" if origin == "file" else origin)


def test_a_wrong_value_is_said_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    for name, value in (("PORT", "many"), ("LOG_LEVEL", "loud"), ("THREADS", "0")):
        monkeypatch.setenv(f"TIDEMILL_{name}", value)
        found = runner.invoke(main.app_of(["serve"]), ["serve"])
        assert f"TIDEMILL_{name}" in found.stderr + str(found.exception), found
        monkeypatch.delenv(f"TIDEMILL_{name}")


def test_names_follow_the_flag_as_typed_and_lists_are_split() -> None:
    seen: dict[str, object] = {}

    def sample(
        as_json: bool = option(False, "--json", help="."),
        every: bool = option(False, "-a", "--all", help="."),
        word: tuple[str, ...] = option((), help="."),
        own: str = option("x", envvar="ELSEWHERE", help="."),
    ) -> None:
        seen.update(as_json=as_json, every=every, word=word, own=own)

    made = name_variables(command("two-words", sample), "two-words")
    variables = {"JSON": "1", "ALL": "off", "WORD": "a  b"}
    CliRunner(env={f"TIDEMILL_TWO_WORDS_{k}": v for k, v in variables.items()}).invoke(made, [])
    assert seen == {"as_json": True, "every": False, "word": ("a", "b"), "own": "x"}


def test_services_of_kubernetes_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {
        "TIDEMILL_PORT": "tcp://10.0.0.7:8000",
        "TIDEMILL_GRPC_PORT": "tcp://10.0.0.8:9",
        "TIDEMILL_SERVICE_HOST": "10.0.0.7",
        "TIDEMILL_SERVICE_PORT_HTTP": "8000",
        "TIDEMILL_PORT_8000_TCP_ADDR": "10.0.0.7",
    }
    assert all(is_service_link(*one) for one in links.items())
    assert not is_service_link("TIDEMILL_PORT", "9000")
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    [made] = main.app_of(["serve"]).commands.values()
    assert made.make_context("serve", []).params["port"] == 8000
    known = [name for name, _ in variables_of(made)]
    assert unknown_variables(links, known, main.COMMANDS) == []
    others = {"TIDEMILL_PROT": "1", "TIDEMILL_RUN_SEED": "1", "TIDEMILL_XYZZY": "", "PATH": ""}
    assert unknown_variables(others, known, main.COMMANDS) == [
        "TIDEMILL_PROT is set, and no flag has this variable; did you mean TIDEMILL_PORT?",
        "TIDEMILL_XYZZY is set, and no flag has this variable",
    ]


def test_the_version_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images often set it."""
    monkeypatch.setenv("TIDEMILL_VERSION", "9.9")
    found = CliRunner().invoke(main.app_of(["man"]), ["man", "ps"])
    assert found.exit_code == 0 and found.stdout.startswith(".TH")
