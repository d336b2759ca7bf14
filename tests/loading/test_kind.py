"""A GGUF file of a vocabulary alone is called that, wherever a model is asked for."""

from __future__ import annotations

from pathlib import Path

import gguf as package
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model
from tidemill.loading.kind import vocabulary_alone
from tidemill.offline.opened_text import OpenedText


def write_vocabulary(path: Path) -> Path:
    """A SentencePiece vocabulary of a few pieces."""
    writer = package.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "▁a"]
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(i) for i in range(len(pieces))])
    writer.add_token_types([2, 3, 3, *[6] * 256, 1, 1, 1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf")
    assert vocabulary_alone(path) and OpenedText.open(path).tokenizer.vocab_size == 262
    with pytest.raises(TidemillError, match="a vocabulary without weights") as caught:
        open_model(path)
    assert caught.value.kind == ErrorKind.MODEL_FILE


def test_what_is_not_one(tmp_path: Path) -> None:
    part = write_vocabulary(tmp_path / "v-00001-of-00002.gguf")  # its weights are in the second
    short, other = tmp_path / "short.gguf", tmp_path / "other.gguf"
    short.write_bytes(b"GGUF\x03\0\0\0")
    other.write_bytes(bytes(64))
    assert not any(vocabulary_alone(path) for path in (part, short, other))
    with pytest.raises(TidemillError, match="cannot be read"):
        vocabulary_alone(tmp_path / "absent.gguf")


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(TidemillError, match="serve its base with --adapter NAME=") as caught:
        open_model(tmp_path)
    assert caught.value.kind == ErrorKind.MODEL_FILE
