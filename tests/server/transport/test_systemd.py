"""A service manager's socket is served and outlives the server; it is told what that does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tidemill.base.errors import TidemillError
from tidemill.server.transport.systemd import ServiceManager


def test_what_is_for_another_process_is_left_alone() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "NOTIFY_SOCKET": "", "PATH": "p"}
    found = ServiceManager.of(environment)
    assert found.listener is None and not found.ear
    assert environment == {"PATH": "p"}  # nor is it for our children
    found.tell("READY=1")


def test_several_sockets_are_refused() -> None:
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
    with pytest.raises(TidemillError, match="passes 2 sockets"):
        ServiceManager.of(environment)


def test_a_manager_that_does_not_listen_ends_nothing(tmp_path: Path) -> None:
    ServiceManager(None, str(tmp_path / "gone")).tell("READY=1")
    ServiceManager(None, "@tidemill-test-nobody").tell("READY=1")


class Manager:
    """Starts servers with one socket, as systemd does."""

    def __init__(self, folder: Path, family: int = socket.AF_INET) -> None:
        self.listener = socket.socket(family)
        if family == socket.AF_INET:
            self.listener.bind(("127.0.0.1", 0))
        else:
            self.listener.bind(str(folder / "unix"))
        self.listener.listen(128)
        self.ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ear.bind(str(folder / "notify"))
        self.ear.settimeout(120)
        self.environment = {**os.environ, "TIDEMILL_HOME": str(folder / "home")}
        self.environment |= {"LISTEN_FDS": "1", "NOTIFY_SOCKET": str(folder / "notify")}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def start(self, *flags: str) -> subprocess.Popen[str]:
        shell = 'exec 3<&"$1"; shift; LISTEN_PID=$$ exec "$@"'
        fd = str(self.listener.fileno())
        command = [sys.executable, "-m", "tidemill", "serve", *flags]
        return subprocess.Popen(
            ["bash", "-c", shell, "bash", fd, *command],
            pass_fds=[self.listener.fileno()],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self, beginning: str) -> str:
        """The next state that a server tells."""
        state = self.ear.recv(4096).decode()
        assert state.startswith(beginning)
        return state


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.listener.close()
    made.ear.close()


def test_a_restart_refuses_and_loses_no_request(manager: Manager) -> None:
    first = manager.start("--port", "1", "--drain-timeout", "60")  # the socket's port counts
    second = None
    outcomes: Counter[str] = Counter()
    stop = threading.Event()

    def ask() -> None:
        """A new connection for each request, and none is sent twice."""
        body = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8}
        while not stop.is_set():
            try:
                answer = httpx.post(f"{manager.url}/v1/chat/completions", json=body, timeout=120)
                outcomes[str(answer.status_code)] += 1
            except httpx.HTTPError as error:
                outcomes[repr(error)] += 1

    asking = [threading.Thread(target=ask) for _ in range(3)]
    try:
        manager.told("READY=1")
        for thread in asking:
            thread.start()
        while outcomes["200"] < 5:
            time.sleep(0.05)
        kept = httpx.Client()
        assert kept.get(f"{manager.url}/healthz").status_code == 200
        first.send_signal(signal.SIGHUP)  # `systemctl reload`: nothing ends by it
        time.sleep(0.2)
        assert kept.get(f"{manager.url}/healthz").headers.get("connection") != "close"
        first.send_signal(signal.SIGTERM)
        assert "EXTEND_TIMEOUT_USEC=78000000" in manager.told("STOPPING=1")
        # A connection that is kept open is told to close, and its request is answered.
        answer = kept.get(f"{manager.url}/healthz")
        assert answer.status_code == 200 and answer.headers["connection"] == "close"
        assert first.wait(120) == 0
        before = outcomes.total()
        second = manager.start()
        manager.told("READY=1")
        while outcomes.total() < before + 5:
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in asking:
            thread.join(timeout=150)
        for server in (first, second):
            if server is not None:
                server.terminate()
                server.wait(120)
    assert outcomes.keys() == {"200"}, outcomes


def test_an_open_address_needs_a_key_wherever_it_comes_from(
    manager: Manager, tmp_path: Path
) -> None:
    manager.listener.close()
    manager.listener = socket.create_server(("0.0.0.0", 0))
    server = manager.start()
    _, said = server.communicate(timeout=120)
    assert server.returncode == 2 and "there is no API key" in said


def test_a_socket_that_is_not_tcp_is_refused(tmp_path: Path) -> None:
    made = Manager(tmp_path, socket.AF_UNIX)
    server = made.start()
    _, said = server.communicate(timeout=120)
    assert server.returncode == 2 and "ListenStream=ADDRESS:PORT" in said
    made.listener.close()
    made.ear.close()
