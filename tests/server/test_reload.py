"""SIGHUP and POST /admin/reload on a real server with a deployment file."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
from helpers.real_server import RealServer

FILE = '[server]\nmemory = "1GiB"\n[[models]]\nname = "brook"\n'
MORE = '[[models]]\nname = "second"\nsource = "brook"\nsystem = "Be brief."\n'


def test_a_stream_goes_on_while_models_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(FILE)
    with RealServer("--config", str(file)) as server:
        body = {"model": "brook", "prompt": "The river", "max_tokens": 1500, "ignore_eos": True}
        wanted = server.complete(**body)["choices"][0]["text"]
        with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            engine = server.engine().pid
            file.write_text(FILE + MORE)
            server.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 20
            names: list[str] = []
            while "second" not in names:
                assert time.monotonic() < deadline, server.text
                names = [card["id"] for card in server.http.get("/v1/models").json()["data"]]
            assert server.complete(model="second", prompt="a", max_tokens=2)["model"] == "second"
            file.write_text(FILE.replace("1GiB", "2GiB") + MORE.replace("brief", "kind"))
            found = server.http.post("/admin/reload").json()
            assert found["models_updated"] == ["second"] and len(found["server"]) == 1
            file.write_text(FILE.replace("[server]", "[server]\nstall_timeout = 9"))
            refused = server.http.post("/admin/reload")
            assert refused.status_code == 400 and "stall_timeout" in refused.text
            assert "second" in [c["id"] for c in server.http.get("/v1/models").json()["data"]]
            file.write_text(FILE)
            assert server.http.post("/admin/reload").json()["models_removed"] == ["second"]
            events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]" and psutil.pid_exists(engine)
        assert server.complete(**body)["choices"][0]["text"] == wanted
        assert server.http.get("/admin/models").json()["memory_budget"] == 2**30
        assert server.stop() == 0
