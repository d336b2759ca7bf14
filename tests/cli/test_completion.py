"""What shells are offered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from click.testing import CliRunner

from tidemill.cli import main
from tidemill.cli.completion import VARIABLE, script


def offered(*words: str) -> list[CompletionItem]:
    *before, typed = words
    complete = ShellComplete(main.app_of([]), {}, "tidemill", VARIABLE)
    return complete.get_completions(list(before), typed)


def test_commands_flags_values_models_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    assert [item.value for item in offered("se")] == ["serve"]
    assert "--kv-dtype" in [item.value for item in offered("serve", "--kv")]
    assert [item.value for item in offered("serve", "--kv-dtype", "b")] == ["bfloat16"]
    assert [item.value for item in offered("keys", "cr")] == ["create"]
    assert [item.value for item in offered("run", "br")] == ["brook"]
    assert [item.type for item in offered("serve", "./mo")] == ["file"]
    assert [item.type for item in offered("serve", "--config", "t")] == ["file"]


def test_bash_completes(tmp_path: Path) -> None:
    command = tmp_path / "tidemill"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidemill "$@"\n')
    command.chmod(0o755)
    lines = f"source {tmp_path}/script\nCOMP_WORDS=(tidemill serve --kv-dt)\nCOMP_CWORD=2\n"
    (tmp_path / "script").write_text(script("bash"))
    lines += '_tidemill_completion tidemill\necho "${COMPREPLY[@]}"\n'
    done = subprocess.run(
        ["bash", "--norc", "-c", lines],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["--kv-dtype"], done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_installed_where_the_shell_looks(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    app = main.app_of(["completion"])
    printed = CliRunner().invoke(app, ["completion"]).stdout
    said = CliRunner().invoke(app, ["completion", "--install"]).stdout
    file = {
        "bash": ".local/share/bash-completion/completions/tidemill",
        "zsh": ".zfunc/_tidemill",
        "fish": ".config/fish/completions/tidemill.fish",
    }[shell]
    assert (tmp_path / file).read_text() == printed and str(tmp_path / file) in said
    assert f"{VARIABLE}={shell}_complete" in printed
    if path := shutil.which(shell):
        subprocess.run([path, "-n", str(tmp_path / file)], check=True, timeout=30)


def test_another_shell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    found = CliRunner().invoke(main.app_of(["completion"]), ["completion"])
    assert "'dash' is none of bash, zsh, fish" in str(found.exception)
