"""The tutorials' commands run; flags that the pages for people from elsewhere name exist."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import click
import pytest

from tidemill.cli.main import app_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
MIGRATIONS = sorted((DOCS / "migrate").glob("*.md"))
SERVERS = ("tidemill serve", "tidemill gateway")


def commands(page: Path) -> Iterator[str]:
    """Commands of the blocks marked `console`; a here-document belongs to its command."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        for command in block.split("\n$ "):
            yield command.removeprefix("$ ").rstrip("\n")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """As of a person who has just installed it: a home of their own, and a free port."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "TIDEMILL_HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def server(command: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The server of a command, from when it is ready on."""
    port = re.search(r"--port (\d+)", command)
    address = f"http://127.0.0.1:{port[1] if port else environment['TIDEMILL_PORT']}/readyz"
    log = (folder / "server.log").open("a")
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=log, stderr=log
    )
    deadline = time.monotonic() + 60
    try:
        while True:
            assert process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline, f"{command} was not ready in time"
            try:
                urlopen(address, timeout=5).close()
                break
            except (URLError, OSError):
                time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        log.close()


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_commands_of_tutorials(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    ports = dict(zip(("8000", "8001", "8002"), map(str, free_ports(3)), strict=True))
    environment["TIDEMILL_PORT"] = ports["8000"]
    (script := tmp_path / "state").write_text("")

    def run(command: str) -> None:
        # variables that a command sets are there for the next one, as in a terminal
        keep = f"declare -p KEY ROOT 2> /dev/null > {script} || true"
        text = f"set -eo pipefail; . {script}; {command}\n{keep}"
        done = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def follow(rest: list[str]) -> None:
        for at, command in enumerate(rest):
            for documented, real in ports.items():
                command = command.replace(f":{documented}", f":{real}")
                command = command.replace(f"--port {documented}", f"--port {real}")
            if command.startswith(SERVERS):
                with server(command, tmp_path, environment):
                    follow(rest[at + 1 :])
                return
            run(command)

    found = list(commands(page))
    assert found
    follow(found)


def test_every_page_is_in_the_site() -> None:
    navigation = (DOCS.parent / "site" / "site.yml").read_text()
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if f": {page}\n" not in navigation} == set()


def flags_of(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from flags_of(each)


@pytest.mark.parametrize("page", MIGRATIONS, ids=lambda page: page.stem)
def test_flags_of_migration_pages_exist(page: Path) -> None:
    app = app_of([])
    known = {
        flag
        for name in app.list_commands(click.Context(app))
        for flag in flags_of(app_of([name]).commands[name])
    }
    named = set()
    for line in page.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            ours = line.split(" | ", 1)[1]
            named |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours))
    assert named
    assert named <= known, f"no flags here: {sorted(named - known)}"
