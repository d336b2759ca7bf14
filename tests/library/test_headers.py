"""Headers of hub models by range requests: nothing else is read, and they open as models do."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from helpers.sparse_model import LLAMA_7B, header_of

from tests.helpers.fake_hub import COMMIT, Answer, FakeHub, Request
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library.headers import fetch_headers
from tidemill.library.locate import remote_name
from tidemill.loading.checkpoint import open_model
from tidemill.loading.formats import gguf
from tidemill.loading.hub_name import HubName

TINY = {**LLAMA_7B, "num_hidden_layers": 2, "hidden_size": 512, "intermediate_size": 1024}
MIB = 2**20


def folder_files(config: dict[str, object]) -> dict[str, bytes]:
    beginning, size = header_of(config)
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b" " * MIB,
        "model.safetensors": beginning + bytes(size - len(beginning)),
    }


@pytest.fixture
def repos(hub: FakeHub) -> dict[str, dict[str, bytes]]:
    found = {"owner/tiny": folder_files(dict(TINY))}
    hub.repos = found
    return found


def test_only_headers_are_read(
    hub: FakeHub, repos: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    said: list[str] = []
    found = fetch_headers(HubName("owner/tiny"), tmp_path, said.append)
    weights = len(repos["owner/tiny"]["model.safetensors"])
    assert weights > 60 * MIB and found.fetched < MIB
    assert found.files == weights + MIB + len(repos["owner/tiny"]["config.json"])
    assert hub.ranges == [f"bytes=0-{2**18 - 1}"]
    assert not [path for path in hub.asked if "tokenizer.json" in path]
    files = open_model(found.path)
    assert files.file_bytes == weights and files.spec.hidden_size == 512
    # What was not fetched takes no disk.
    assert (tmp_path / "model.safetensors").stat().st_blocks * 512 < MIB


def test_a_header_longer_than_the_first_request(
    hub: FakeHub, repos: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    long = dict(TINY) | {"num_hidden_layers": 700, "hidden_size": 32, "intermediate_size": 32}
    long |= {"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 64}
    repos["owner/long"] = folder_files(long)
    found = fetch_headers(HubName("owner/long"), tmp_path, lambda line: None)
    assert len(header_of(long)[0]) > 2**18
    assert len(open_model(found.path).spec.layers) == 700
    assert hub.ranges[1].startswith(f"bytes={2**18}-") and len(hub.ranges) == 2


def gguf_file(words: int, weights: int) -> bytes:
    """A GGUF file with a vocabulary of so many words and a tensor of so many bytes."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    head += text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, words)
    head += b"".join(text(b"word %d" % i) for i in range(words))
    head += text(b"token_embd.weight") + struct.pack("<IQIQ", 1, weights, 24, 0)
    return head + bytes(-len(head) % 32) + bytes(weights)


def test_a_gguf_file_whose_vocabulary_is_long(
    hub: FakeHub, repos: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    content = gguf_file(60_000, 8 * MIB)
    repos["owner/gguf"] = {"m-Q8_0.gguf": content}
    found = fetch_headers(HubName("owner/gguf"), tmp_path, lambda line: None)
    assert found.path.name == "m-Q8_0.gguf" and found.path.stat().st_size == len(content)
    parsed = gguf.read_file(found.path)
    assert len(parsed.metadata["tokenizer.ggml.tokens"]) == 60_000
    assert parsed.tensors["token_embd.weight"].nbytes == 8 * MIB
    header = len(content) - 8 * MIB
    assert header < found.fetched < 2 * header + 2**18
    assert sum(1 for _ in hub.ranges) == 4  # 256 KiB, and twice as much each time


def test_a_host_without_ranges(
    hub: FakeHub, repos: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    def whole(request: Request) -> Answer | None:
        own = request.answer
        return Answer(own.status, own.headers, own.body) if own.ranges else None

    hub.fault = whole
    found = fetch_headers(HubName("owner/tiny"), tmp_path, lambda line: None)
    assert open_model(found.path).spec.hidden_size == 512 and found.fetched < MIB


def test_faults(hub: FakeHub, repos: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    failures = iter((503, 429))

    def busy(request: Request) -> Answer | None:
        code = next(failures, None) if request.path.endswith(".safetensors") else None
        return None if code is None else Answer(code)

    hub.fault = busy
    assert fetch_headers(HubName("owner/tiny"), tmp_path, lambda line: None).fetched
    hub.fault = lambda request: None
    with pytest.raises(TidemillError) as caught:
        fetch_headers(HubName("owner/absent"), tmp_path, lambda line: None)
    assert caught.value.kind is ErrorKind.NOT_FOUND
    repos["owner/huge"] = {
        "config.json": json.dumps(dict(TINY)).encode(),
        "model.safetensors": (2**40).to_bytes(8, "little") + bytes(2**19),
    }  # fmt: skip
    (tmp_path / "huge").mkdir()
    fetch_headers(HubName("owner/huge"), tmp_path / "huge", lambda line: None)
    with pytest.raises(TidemillError, match="header would take"):
        open_model(tmp_path / "huge")
    hub.down = True
    (tmp_path / "down").mkdir()
    with pytest.raises(TidemillError) as caught:
        fetch_headers(HubName("owner/tiny"), tmp_path / "down", lambda line: None)
    assert caught.value.kind is ErrorKind.UNAVAILABLE and caught.value.retryable


def test_the_hubs_cache_stands_in_for_the_hub(
    hub: FakeHub,
    repos: dict[str, dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "hub" / "models--owner--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in repos["owner/tiny"].items():
        (snapshot / name).write_bytes(content)
    name = HubName("owner/tiny", revision=COMMIT)
    found = fetch_headers(name, tmp_path / "none", lambda line: None)
    assert found.path == snapshot and found.fetched == 0 and not hub.asked
    with pytest.raises(TidemillError, match="HF_HUB_OFFLINE is set"):
        fetch_headers(HubName("owner/elsewhere"), tmp_path / "none", lambda line: None)


def test_which_names_are_the_hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "here").mkdir(parents=True)
    assert remote_name("owner/model:Q4_K_M") == HubName("owner/model", tag="Q4_K_M")
    for local in ("brook", None, "./owner/model", "owner/here", str(tmp_path), "model.gguf"):
        assert remote_name(local) is None
