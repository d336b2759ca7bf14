"""Promise 12, of a model whose files are damaged, before the start or under the server."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path

import pytest
from helpers.real_server import RealServer

from tidemill.loading.bundled import bundled_models

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
            said = re.findall(rf"api .*{answer.headers['x-request-id']} failed: .*", server.text)
            assert len(said) == 1 and "not finite numbers" in said[0]
        assert server.engine().pid == pid and "Traceback" not in server.text
