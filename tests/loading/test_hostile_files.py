"""Files made to hang a reader, or to fill the memory: refused, naming what is wrong."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.run import run

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading.formats import gguf, safetensors, torch_files
from tidemill.loading.jsonfile import parse_object
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

from .test_torch_files import archive

SIZE = 4 * 2**20
SLACK = 64 * 2**20  # what a file may take beside four times itself, so that vocabularies fit


def test_a_short_run_of_the_fuzzer(tmp_path: Path) -> None:
    tally = run(1500, seed=11, folder=tmp_path)
    assert tally.failures == []
    assert sum(tally.inputs.values()) == 1500
    for name in ("safetensors headers", "GGUF headers", "chat templates", "tokenizer.json"):
        assert tally.accepted[name], name


def metadata(kind: int, count: int, items: bytes) -> bytes:
    """A GGUF file of one array."""
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, kind, count) + items
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair


def read_json(path: Path) -> None:
    parse_object(path.read_bytes(), path.name)


def header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


BOMBS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "empty lists": (b'{"a":[' + b"[]," * (SIZE // 3) + b"[]]}", read_json),
    "empty objects": (b'{"a":[' + b"{}," * (SIZE // 3) + b"{}]}", read_json),
    "objects of one": (b'{"a":[' + b'{"":0},' * (SIZE // 7) + b"0]}", read_json),
    "safetensors header": (
        header(b'{"a":[' + b"[]," * (SIZE // 3) + b"[]]}"),
        safetensors.read_file,
    ),
    "short texts": (
        metadata(8, SIZE * 8 // 10, (struct.pack("<Q", 2) + b"ab") * (SIZE * 8 // 10)),
        gguf.read_file,
    ),
    "small numbers": (metadata(0, SIZE * 4, b"\xff" * SIZE * 4), gguf.read_file),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_take_no_more_than_they_may(name: str, tmp_path: Path) -> None:
    content, read = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(TidemillError, match=r"memory|items are announced") as caught:
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.kind == ErrorKind.MODEL_FILE
    assert peak < 4 * len(content) + SLACK


@pytest.mark.parametrize("opcode", [b"(", b"}", b"N", b"K\xff", b"}q\x01"])
def test_pickles_of_many_values(opcode: bytes, tmp_path: Path) -> None:
    path = archive(tmp_path / "m.bin", b"\x80\x02" + opcode * (SIZE // len(opcode)))
    tracemalloc.start()
    try:
        with pytest.raises(TidemillError, match="more values"):
            torch_files.read_file(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * SIZE


def test_pickles_that_hold_themselves(tmp_path: Path) -> None:
    data = b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."  # d = {}; d["a"] = d
    with pytest.raises(TidemillError, match="'a' is not a tensor"):
        torch_files.read_file(archive(tmp_path / "m.bin", data))


def test_a_piece_of_a_million_characters() -> None:
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a", "a" * 10**6],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0],
        "tokenizer.ggml.token_type": [2, 1, 1],
        "tokenizer.ggml.unknown_token_id": 0,
    }
    started = time.monotonic()
    with pytest.raises(TidemillError, match="1000000 characters"):
        Tokenizer(TokenizerData(gguf=vocabulary))
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 10 ** 9 }}",
        "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}"
        "{% endfor %}",
    ],
)
def test_templates_that_loop_or_grow(source: str) -> None:
    started = time.thread_time()  # a busy machine takes longer
    with pytest.raises(TidemillError):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])
    assert time.thread_time() - started < 5


def test_real_files_pass_the_bounds(shared_vocab: Path) -> None:
    for path in shared_vocab.glob("*.gguf"):
        assert gguf.read_file(path).metadata
    config = {"a": {str(i): i for i in range(50_000)}}
    assert parse_object(json.dumps(config).encode(), "x") == config
