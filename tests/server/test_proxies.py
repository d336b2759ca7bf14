"""The proxies of deploy/proxies, where they are installed: answers come as they are written."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from helpers.pki import make_pki
from helpers.real_server import RealServer

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "proxies"
BODY = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer("--trusted-proxy", "127.0.0.1", "--allowed-host", "llm.example.com") as made:
        yield made


def nginx(folder: Path, port: int, backend: str) -> list[str] | None:
    """The example as nginx's own file, with our ports and certificate."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    text = (FOLDER / "nginx.conf").read_text()
    make_pki(folder)
    text = text.replace("127.0.0.1:8000", backend).replace("listen 443", f"listen 127.0.0.1:{port}")
    text = text.replace("/etc/ssl/llm.example.com.pem", f"{folder}/server.pem")
    text = text.replace("/etc/ssl/llm.example.com.key", f"{folder}/server.key")
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr;\nevents {{}}\n"
        f"http {{ access_log off;\n{paths}{text} }}\n"
    )
    command = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    return None if program is None else [program, *command]


def caddy(folder: Path, port: int, backend: str) -> list[str] | None:
    """The example with a certificate of its own authority."""
    program = shutil.which("caddy")
    text = (FOLDER / "Caddyfile").read_text().replace("127.0.0.1:8000", backend)
    text = text.replace("llm.example.com {", f"https://llm.example.com:{port} {{\n\ttls internal")
    options = ("admin off", "skip_install_trust", "auto_https disable_redirects")
    head = "{\n\t" + "\n\t".join((*options, f"storage file_system {folder}")) + "\n}\n"
    (folder / "Caddyfile").write_text(head + text)
    return None if program is None else [program, "run", "--config", str(folder / "Caddyfile")]


@pytest.mark.parametrize("proxy", [nginx, caddy])
def test_a_stream_through_a_proxy(proxy: Any, server: RealServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = proxy(tmp_path, port, server.url.removeprefix("http://"))
    if command is None:
        return  # not on this machine
    log = (tmp_path / "log").open("w")
    running = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"https://127.0.0.1:{port}"
    client = httpx.Client(verify=False, timeout=60, headers={"Host": "llm.example.com"})
    extensions = {"sni_hostname": "llm.example.com"}
    try:
        for _ in range(200):
            try:
                if client.get(f"{url}/readyz", extensions=extensions).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        began = time.monotonic()
        request = client.build_request(
            "POST", f"{url}/v1/chat/completions", json=BODY, extensions=extensions
        )
        answer = client.send(request, stream=True)
        chunks = [time.monotonic() - began for _ in answer.iter_raw()]
        assert answer.status_code == 200 and len(chunks) >= 10, (tmp_path / "log").read_text()
        sent = client.get(f"{url}/healthz", extensions=extensions)
        assert sent.status_code == 200
    finally:
        running.terminate()
        running.wait(30)
        log.close()


def test_examples_say_what_streams_need() -> None:
    text = (FOLDER / "nginx.conf").read_text()
    for line in ("proxy_buffering off", "proxy_next_upstream off", "client_max_body_size 16m"):
        assert f"{line};" in text
    assert "flush_interval -1" in (FOLDER / "Caddyfile").read_text()
    envoy = yaml.safe_load((FOLDER / "envoy.yaml").read_text())
    [listener] = envoy["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    [route] = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert route["route"]["timeout"] == "0s"
    [cluster] = envoy["static_resources"]["clusters"]
    assert route["route"]["cluster"] == cluster["name"]
    for file in FOLDER.iterdir():
        assert re.search(r"--trusted-proxy [\w.]+", file.read_text()), file
