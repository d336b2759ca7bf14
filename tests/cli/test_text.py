"""`tidemill tokenize` and `tidemill render`: the server's own ids and prompts, without weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.loading.text_side import open_text
from tidemill.offline.opened_text import OpenedText
from tidemill.text.tokenizer import Tokenizer


def tidemill(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tidemill", *args], input=stdin, capture_output=True, timeout=60
    )


def test_tokenize_prints_one_line_of_ids(shared_vocab: Path) -> None:
    path = shared_vocab / "ggml-vocab-llama-spm.gguf"
    text = "Hello\n wörld \U0001f999\r\n"
    tokenizer = Tokenizer(open_text(path).tokenizer)
    for flag, special in ((), True), (("--no-special",), False):
        done = tidemill("tokenize", str(path), *flag, stdin=text.encode())
        assert done.returncode == 0, done.stderr
        ids = tokenizer.encode(text, add_special=special)
        assert done.stdout.decode() == " ".join(map(str, ids)) + "\n"
    assert tidemill("tokenize", str(path), "--no-special").stdout == b"\n"


def test_tokenize_reads_the_bundled_model_where_none_is_named() -> None:
    expected = OpenedText.open().tokenizer.encode("Who are you?")
    done = tidemill("tokenize", stdin=b"Who are you?")
    assert done.stdout.decode().split() == [str(i) for i in expected], done.stderr


def test_every_kind_of_tokenizer_file(tmp_path: Path) -> None:
    folder = OpenedText.open().path
    expected = OpenedText.open().tokenizer.encode("Who are you?")
    for source in (None, folder, folder / "tokenizer.json"):
        assert Tokenizer(open_text(source).tokenizer).encode("Who are you?") == expected


@pytest.mark.parametrize(
    ("args", "stdin", "says"),
    [
        (("tokenize", "brook"), b"\xff\xfe", "not UTF-8 at byte 0"),
        (("tokenize", "/no/such/file"), b"", "no such file"),
        (("tokenize", "NOTES"), b"", "neither a tokenizer.json"),
        (("render", "brook"), b"{", "not valid JSON"),
        (("render", "brook"), b'{"messages": []}', "messages"),
        (("render", "brook"), b'{"messages": [{"role": "x", "content": "y"}]}', "role"),
        (("render", "brook"), b'{"messages": [{"role": "user", "content": "y"}], "z": 1}', "z is"),
    ],
)
def test_mistakes_are_named(args: tuple[str, ...], stdin: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "NOTES").write_text("not a tokenizer")
    args = tuple(str(tmp_path / a) if a == "NOTES" else a for a in args)
    done = tidemill(*args, stdin=stdin)
    assert done.returncode == 2
    assert says in done.stderr.decode() and "Traceback" not in done.stderr.decode()


def test_render_is_what_the_server_would_read() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    messages = [{"role": "user", "content": "Wörk?"}]
    body = json.dumps({"messages": messages, "tools": tools})
    done = tidemill("render", stdin=body.encode())
    assert done.returncode == 0, done.stderr
    template = OpenedText.open().template
    assert done.stdout.decode() == template.render(messages, tools)
    continued = [*messages, {"role": "assistant", "content": "It"}]
    body = json.dumps({"messages": continued, "continue_final_message": True})
    assert tidemill("render", stdin=body.encode()).stdout.decode().endswith("It")
