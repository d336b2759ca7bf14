"""Pipelines of a deployment file, in a real server with the bundled model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from helpers.real_server import RealServer

CONFIG = """
[[models]]
name = "brook"
source = "brook"

[[pipelines]]
name = "docs"
file = "docs.py"
[pipelines.options]
folder = "{folder}/files"
store = "{folder}/vectors.sqlite"
embedder = "brook"
model = "brook"
reranker = "brook"
sources = 2
passage_chars = 200

[[pipelines]]
file = "long.py"
"""
OPTIONS = """
async def answer(request, models):
    return str(request.options)
"""
LONG = """
async def answer(request, models):
    while True:
        async for text in models["brook"].stream("Once", ignore_eos=True, max_tokens=500):
            yield text
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("deployment")
    (folder / "files").mkdir()
    (folder / "files" / "tides.md").write_text("The tide comes twice a day.\n")
    (folder / "files" / "mills.md").write_text("A mill grinds grain with stones.\n")
    (folder / "docs.py").write_text("from tidemill.pipelines.examples.documents import answer\n")
    (folder / "long.py").write_text(LONG)
    config = folder / "tidemill.toml"
    config.write_text(CONFIG.format(folder=folder))
    with RealServer("--config", str(config)) as server:
        yield server


@pytest.fixture
def folder(server: RealServer) -> Path:
    return Path(server.process.args[-1]).parent  # type: ignore[index]


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _processes(server: RealServer) -> dict[str, psutil.Process]:
    """The pipelines' processes by their file."""
    found = {}
    for child in psutil.Process(server.process.pid).children():
        try:
            line = child.cmdline()
        except psutil.NoSuchProcess:  # it ends, and is not reaped yet
            continue
        if "tidemill.pipelines.process" in line:
            found[Path(line[-2]).name] = child
    return found


def _body(model: str, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "When does the tide come?"}]
    return {"model": model, "messages": messages, **fields}


def test_a_question_is_answered_from_files_by_vectors_ranks_and_a_model(
    server: RealServer,
) -> None:
    fields = {"max_tokens": 20, "temperature": 0, "seed": 3}
    answer = server.http.post("/v1/chat/completions", json=_body("docs", **fields)).json()
    text = answer["choices"][0]["message"]["content"]
    assert "\n\nSources" in text and "tides.md, line 1" in text
    assert answer["model"] == "docs" and answer["usage"]["completion_tokens"] > 0
    streamed = server.http.post("/v1/chat/completions", json=_body("docs", stream=True, **fields))
    events = [json.loads(x[6:]) for x in streamed.text.splitlines() if x.startswith("data: {")]
    parts = [e["choices"][0]["delta"].get("content") or "" for e in events]
    assert "".join(parts) == text and len(parts) > 4
    cards = server.http.get("/v1/models").json()["data"]
    assert [(card["id"], card["backend"]) for card in cards] == [
        ("brook", "native"),
        ("docs", "pipeline"),
        ("long", "pipeline"),
    ]
    assert 'model="docs"' in server.http.get("/metrics").text


def test_a_client_that_leaves_ends_the_work_in_the_engine(server: RealServer) -> None:
    body = _body("long", stream=True)
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        while "content" not in next(lines):
            pass
    _until(lambda: not any(server.stats()["running"] for _ in range(5)))


def test_a_killed_process_ends_its_own_streams_alone(server: RealServer) -> None:
    fields = {"model": "brook", "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "seed": 1}
    expected = server.complete(**fields)["choices"][0]["text"]

    def broken() -> str:
        return server.http.post("/v1/chat/completions", json=_body("long", stream=True)).text

    with ThreadPoolExecutor(1) as pool:
        ends = pool.submit(broken)
        _until(lambda: server.stats()["running"] == 1)
        body = {**fields, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
            events = [json.loads(next(lines)[6:])]
            _processes(server)["long.py"].kill()
            events += [json.loads(line[6:]) for line in lines]
        assert "".join(event["choices"][0]["text"] for event in events) == expected
        assert "ended while it answered" in ends.result(), server.text
    _until(lambda: not any(server.stats()["running"] for _ in range(5)))
    body = _body("long", stream=True)
    with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
    assert "killed by SIGKILL" in server.text


def test_a_reload_adds_changes_and_removes_pipelines(server: RealServer, folder: Path) -> None:
    config, before = folder / "tidemill.toml", _processes(server)
    text = config.read_text()
    (folder / "new.py").write_text(OPTIONS)
    (folder / "long.py").write_text(LONG + "# edited\n")
    more = '\n[[pipelines]]\nfile = "new.py"\noptions = { a = 1 }\n'

    def reload(text: str) -> None:
        config.write_text(text)
        answer = server.http.post("/admin/reload")
        assert answer.status_code == 200, answer.text

    def said() -> str:
        answer = server.http.post("/v1/chat/completions", json=_body("new")).json()
        content: str = answer["choices"][0]["message"]["content"]
        return content

    reload(text + more)
    assert said() == "{'a': 1}"
    reload(text + more.replace("1", "2"))
    assert said() == "{'a': 2}"
    reload(text)
    assert server.http.post("/v1/chat/completions", json=_body("new")).status_code == 404
    _until(lambda: "new.py" not in _processes(server))
    after = _processes(server)
    assert after["docs.py"].pid == before["docs.py"].pid
    states = {one["name"]: one for one in server.http.get("/admin/models").json()["models"]}
    assert states["docs"]["state"] == "loaded"
    # Unloaded, it starts again with its next request.
    assert server.http.post("/admin/models/unload", json={"model": "docs"}).status_code == 200
    assert "docs.py" not in _processes(server)
    body = _body("docs", max_tokens=1)
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    assert _processes(server)["docs.py"].pid != before["docs.py"].pid
    children = psutil.Process(server.process.pid).children
    _until(lambda: not any(c.status() == psutil.STATUS_ZOMBIE for c in children()))


def test_processes_end_with_the_server(server: RealServer) -> None:
    processes = _processes(server)
    assert set(processes) == {"docs.py", "long.py"}
    assert server.stop() == 0
    assert not [p for p in processes.values() if p.is_running()]
