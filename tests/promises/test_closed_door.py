"""Promise 11 on the real server: keys, roles, files, sockets, logs."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from helpers.real_server import RealServer

pytestmark = pytest.mark.xdist_group("promises")

ADMIN, USER = "admin-key-0123456789abcdef", "user-key-0123456789abcdef"
SECRET = "velvet hammer of the north"
FLAGS = ("--kv-memory", "64MiB", "--threads", "1")


def _write(path: Path, *keys: tuple[str, str, str]) -> None:
    entries = [{"name": name, "key": key, "role": role} for name, key, role in keys]
    path.write_text(json.dumps({"keys": entries}))
    path.chmod(0o600)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealServer, Path]]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    _write(path, ("root", ADMIN, "admin"), ("ann", USER, "user"))
    flags = ("--api-keys", str(path), "--log-format", "json", "--log-level", "debug")
    with RealServer(*FLAGS, *flags) as running:
        yield running, path


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_promise_11_every_route_of_the_running_server_is_closed(
    locked: tuple[RealServer, Path],
) -> None:
    http = locked[0].http
    document = http.get("/openapi.json", headers=_bearer(USER)).json()
    routes = [(m.upper(), path) for path, methods in document["paths"].items() for m in methods]
    assert len(routes) >= 9 and ("GET", "/readyz") in routes
    for method, path in [*routes, ("GET", "/"), ("GET", "/docs"), ("POST", "/v1/unknown")]:
        status = http.request(method, path, json={}).status_code
        probe = path in ("/healthz", "/readyz", "/health", "/ping")
        assert status == (200 if probe else 401), (method, path)
    assert http.get("/metrics", headers=_bearer(USER)).status_code == 403
    assert http.get("/metrics", headers=_bearer(ADMIN)).status_code == 200


def test_promise_11_the_cache_of_one_key_does_not_serve_another(
    locked: tuple[RealServer, Path],
) -> None:
    body = {"prompt": "The old lighthouse keeper " * 40, "max_tokens": 1}

    def cached(key: str, **more: Any) -> int:
        answer = (
            locked[0]
            .http.post("/v1/completions", json={**body, **more}, headers=_bearer(key))
            .json()
        )
        found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached(USER) == 0
    assert cached(USER) > 0
    assert cached(ADMIN) == 0


def test_promise_11_keys_are_read_again(locked: tuple[RealServer, Path]) -> None:
    server, path = locked
    path.write_text("{")
    server.process.send_signal(signal.SIGHUP)
    _eventually(lambda: "stay as they were" in server.text)
    assert server.http.get("/v1/models", headers=_bearer(USER)).status_code == 200
    _write(path, ("root", ADMIN, "admin"))
    server.process.send_signal(signal.SIGHUP)
    _eventually(lambda: "1 gone" in server.text)
    assert server.http.get("/v1/models", headers=_bearer(USER)).status_code == 401
    assert server.http.get("/v1/models", headers=_bearer(ADMIN)).status_code == 200


def test_promise_11_logs_of_both_processes_hold_no_secrets(
    locked: tuple[RealServer, Path],
) -> None:
    server = locked[0]
    headers = _bearer(ADMIN)
    for stream in (False, True):
        body = {"prompt": SECRET, "max_tokens": 8, "stream": stream, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    server.http.post("/v1/completions", json={"prompt": SECRET, SECRET: 1}, headers=headers)
    server.http.get(f"/v1/models/{SECRET}", headers=headers)
    server.http.get("/v1/models", headers=_bearer("wrong-" + SECRET.replace(" ", "-")))
    _eventually(lambda: server.text.count('"route": "/v1/completions"') >= 3)
    for word in (SECRET, SECRET.replace(" ", "-"), ADMIN, USER):
        assert word not in server.text


def test_promise_11_sockets_and_command_lines_are_private(
    locked: tuple[RealServer, Path],
) -> None:
    engine = locked[0].engine()
    command = engine.cmdline()
    path = Path(command[command.index("--socket") + 1])
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.getuid()
    # Nothing but the one port listens, and only on this machine.
    processes = [psutil.Process(locked[0].process.pid), engine]
    listening = [c for p in processes for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    assert len({c.laddr.port for c in listening}) == 1


def test_promise_11_a_key_in_the_environment_goes_no_further() -> None:
    command = [sys.executable, "-m", "tidemill", "serve", "--port", "0", *FLAGS]
    environment = {**os.environ, "TIDEMILL_API_KEY": ADMIN}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        lines = []
        while " on http://" not in (line := process.stderr.readline()):
            assert line, lines
            lines.append(line)
        url = line.split(" on ")[1].split()[0]
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers=_bearer(ADMIN)).status_code == 200
        [engine] = psutil.Process(process.pid).children()
        assert "TIDEMILL_API_KEY" not in engine.environ()
        assert any("every route but the probes" in line for line in lines)
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_promise_11_no_open_server_beyond_this_machine(host: str) -> None:
    command = [sys.executable, "-m", "tidemill", "serve", "--port", "0", "--host", host]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "--api-key" in ended.stderr and "--insecure" in ended.stderr


def _eventually(test: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
