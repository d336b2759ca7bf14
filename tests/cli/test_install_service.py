"""The units of systemd, and where they go."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidemill.base.errors import TidemillError
from tidemill.cli import main
from tidemill.cli.service_units import Service, quoted

ROOT = Path(__file__).resolve().parents[2]


def install(*arguments: str) -> Result:
    words = ["install-service", *arguments]
    return CliRunner().invoke(main.app_of(words), words)


def example() -> Service:
    """As packagers install it, in deploy/systemd."""
    return Service(
        "tidemill", ("/usr/bin/tidemill",), (), "127.0.0.1:8000", "/etc/tidemill/environment"
    )


def test_the_examples_are_what_is_installed() -> None:
    for file, text in example().units().items():
        assert (ROOT / "deploy" / "systemd" / file).read_text() == text, file


@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_finds_little_exposed(gpu: bool, tmp_path: Path) -> None:
    service = Service("t", ("/bin/true",), ("a b",), "8000", "/etc/t", gpu=gpu, at_home=True)
    for file, text in service.units().items():
        (tmp_path / file).write_text(text)
        keys = re.findall(r"^(\w+)=", text, re.MULTILINE)
        again = {"Environment", "DeviceAllow", "SystemCallFilter"}
        assert all(keys.count(key) == 1 for key in set(keys) - again), keys
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        return
    unit = str(tmp_path / "t.service")
    checked = subprocess.run(
        [analyse, "security", "--offline=true", "--threshold=30", unit],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stdout[-300:] + checked.stderr
    verified = subprocess.run([analyse, "verify", unit], capture_output=True, text=True, timeout=60)
    assert "t.service:" not in verified.stderr and "t.socket:" not in verified.stderr


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("--threads", "--threads"),
        ("owner/name:Q4_K_M", "owner/name:Q4_K_M"),
        ("a b", '"a b"'),
        ("50%", "50%%"),
        ("$HOME", '"$$HOME"'),
        ('"', '"\\""'),
        ("ü", "ü"),
        ("", '""'),
        (";", '";"'),
    ],
)
def test_words_of_a_command(word: str, written: str) -> None:
    assert quoted(word) == written


def test_a_users_own_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    said = install("--user", "--name", "mine", "--listen", "9000", "--", "brook", "--threads", "1")
    assert said.exit_code == 0, said.exception
    assert (
        "systemctl --user daemon-reload && systemctl --user enable --now mine.socket" in said.stdout
    )
    service = (tmp_path / "systemd/user/mine.service").read_text()
    assert re.search(
        r"^ExecStart=\S+ (-m tidemill )?serve brook --threads 1$", service, re.MULTILINE
    )
    assert "WantedBy=default.target" in service and "DynamicUser" not in service
    assert "ListenStream=9000\n" in (tmp_path / "systemd/user/mine.socket").read_text()
    variables = tmp_path / "tidemill/environment"
    assert stat.S_IMODE(variables.stat().st_mode) == 0o600
    variables.write_text("TIDEMILL_THREADS=2\n")
    install("--user", "--name", "mine")
    assert variables.read_text() == "TIDEMILL_THREADS=2\n"  # the user's


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--listen", "nowhere"), "ADDRESS:PORT"),
        (("--listen", "127.0.0.1:0"), "ADDRESS:PORT"),
        (("--listen", "127.0.0.1:65536"), "ADDRESS:PORT"),
        (("--name", "a/b"), "--name"),
        (("--", "brook", "--port", "1"), "--listen says it"),
        (("--", "--host=::"), "--listen says it"),
        (("--", "brook", "--thraeds", "4"), "--threads"),
        (("--", "brook", "--threads", "four"), "'four'"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], says: str) -> None:
    found = install("--print", *words)
    assert isinstance(found.exception, TidemillError) and says in found.exception.message


def test_printing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "[Socket]" in install("--user", "--print").stdout
    assert not list(tmp_path.iterdir())


def test_a_program_that_the_services_user_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "tidemill").write_text("")
    monkeypatch.setattr("sys.executable", str(closed / "python"))
    found = install()
    assert isinstance(found.exception, TidemillError) and "/opt/tidemill" in found.exception.message
