"""A library and a hub that this process takes for the real one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.helpers.fake_hub import FakeHub
from tidemill.library import http
from tidemill.library.catalog import Library

# Sizes that are no multiple of a piece; `same` has the content of another file.
WEIGHTS = bytes(range(256)) * 1500 + b"end"
REPOS: Mapping[str, Mapping[str, bytes]] = {
    "owner/folder": {
        "config.json": b'{"architectures": []}',
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "1_Dense/model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"pickle",
    },
    "owner/gguf": {
        "m-Q4_K_M.gguf": b"GGUF four" + WEIGHTS,
        "m-Q8_0.gguf": b"GGUF eight",
        "m-BF16-00001-of-00002.gguf": b"GGUF one",
        "m-BF16-00002-of-00002.gguf": b"GGUF two",
    },
    "owner/adapter": {
        "adapter_config.json": b'{"peft_type": "LORA"}',
        "adapter_model.safetensors": WEIGHTS,
        "tokenizer.json": b"{}",
        "training_args.bin": b"pickle",
    },
    "owner/gated": {},
}


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library.open(tmp_path / "home")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import constants

    hub = FakeHub(REPOS, gated=("owner/gated",), token="secret")
    monkeypatch.setattr(http, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "secret")
    with hub.listening():
        yield hub
