"""Promise 12, of a model whose files are damaged, before the start or under the server."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.real_server import RealServer

from tidemill.loading.locate import bundled_models

pytestmark = pytest.mark.xdist_group("promises")

FLAGS = ("--kv-memory", "32MiB", "--threads", "1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(bundled_models()["brook"], folder)
    return folder


def place(weights: Path, name: str) -> tuple[int, int]:
    """Where a tensor's bytes begin and end in a safetensors file."""
    with weights.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
    return 8 + length + begin, 8 + length + end


def await_words(server: RealServer, words: str) -> None:
    """Wait until the log, which is read by a thread, has them."""
    deadline = time.monotonic() + 10
    while not re.search(words, server.text):
        assert time.monotonic() < deadline, server.text
        time.sleep(0.02)


def test_a_model_that_computes_no_numbers_says_so(model: Path) -> None:
    weights = model / "model.safetensors"
    begin, end = place(weights, "model.norm.weight")
    with weights.open("r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * (end - begin))  # NaN in every type of float
    with RealServer(str(model), *FLAGS) as server:
        pid = server.engine().pid
        asked = {"prompt": "The river", "max_tokens": 3, "temperature": 0}
        for path, body in (
            ("/v1/completions", asked),
            ("/v1/completions", {**asked, "echo": True, "logprobs": 2}),
            ("/v1/embeddings", {"input": "The river"}),
        ):
            answer = server.http.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (500, "model_output_not_finite"), path
            assert "not finite numbers" in error["message"] and "float32" in error["message"]
            line = rf"api .*{answer.headers['x-request-id']} failed: .*not finite numbers"
            await_words(server, line)
        assert server.engine().pid == pid and "Traceback" not in server.text


ENDLESS = {"prompt": "The river", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def end_of_stream(server: RealServer) -> str:
    """The last event of a stream that nothing but the server's end ends."""
    with server.http.stream("POST", "/v1/completions", json=ENDLESS) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    return events[-1]


def overwrite(weights: Path) -> None:
    """Other values in place, with the size as it was."""
    with weights.open("r+b") as file:
        file.seek(-5000, 2)
        file.write(bytes(4000))


def truncate(weights: Path) -> None:
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)


@pytest.mark.parametrize("change", [overwrite, truncate])
def test_weights_that_change_under_the_server_end_it_at_once(
    model: Path, change: Callable[[Path], None]
) -> None:
    weights = model / "model.safetensors"
    with RealServer(str(model), *FLAGS) as server:
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(end_of_stream, server)
            while not server.stats()["running"]:
                time.sleep(0.01)
            change(weights)
            error = json.loads(last.result().removeprefix("data: "))["error"]
        assert error["code"] == "engine_unavailable" and "model.safetensors" in error["message"]
        assert str(model) not in error["message"] and str(weights) in server.text
        assert server.wait() == 1
        assert "stopping: the model's file" in server.text and "Traceback" not in server.text
        assert "resumes after" not in server.text and "could not start" not in server.text


def test_what_does_not_change_the_bytes_ends_nothing(model: Path) -> None:
    weights = model / "model.safetensors"
    asked = {"prompt": "The river", "max_tokens": 5, "temperature": 0}
    with RealServer(str(model), *FLAGS) as server:
        before = server.complete(**asked)["choices"]
        (model / "chat_template.jinja").write_text("{{ messages }}")  # the API process has its own
        weights.chmod(0o400)
        os.link(weights, model / "other-name")
        assert server.complete(**asked)["choices"] == before
        engine = server.engine()
        engine.kill()
        assert server.complete(**asked)["choices"] == before
        assert server.engine().pid != engine.pid
        await_words(server, "chat_template.jinja has been changed; the server continues")
        weights.rename(model / "old")
        shutil.copy(model / "old", weights)
        assert server.complete(**asked)["choices"] == before
        await_words(server, "model.safetensors has been replaced or removed; this server continues")
        assert server.stop() == 0


def test_a_vocabulary_replaced_under_the_server_is_not_mixed_in(model: Path) -> None:
    with RealServer(str(model), *FLAGS) as server:
        text = (model / "tokenizer.json").read_text()
        (model / "new").write_text(text)
        (model / "new").rename(model / "tokenizer.json")
        assert server.complete(prompt="The river", max_tokens=5)
        server.engine().kill()
        assert server.wait(20) == 1
        assert "tokenizer.json has been replaced since this server started" in server.text
