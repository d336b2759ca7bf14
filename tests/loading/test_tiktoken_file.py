"""Files of tiktoken ranks against the tiktoken package."""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tidemill.base.errors import TidemillError
from tidemill.loading.text_side import read_folder
from tidemill.text.tokenizer import Tokenizer

tiktoken = pytest.importorskip("tiktoken")

TEXT = (
    "The tide mill's wheels DIDN'T turn in 1234567 years; McDonald said: 'we'll see!' "
    "Вода и мельница. 潮汐磨坊的轮子在转动。水车ABC混合12345字。 Ünïcödé e\u0301 naïve 한국어 "
    "テスト\n\n"
    "\tdef f(x):\r\n    return x**2  # über\n   \n  end   🌊🌊 ok"
)
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip
# file, tokenizer_class -> the expression of its makers
KINDS = [
    ("tiktoken.model", "TikTokenTokenizer", KIMI),
    ("qwen.tiktoken", "QWenTokenizer", QWEN),
    ("o200k_base.tiktoken", "", O200K),
]


def ranks() -> dict[bytes, int]:
    """All bytes, then unions of what is there and occurs in the text, at random."""
    draw, data = random.Random(5), TEXT.encode()
    tokens = [bytes([b]) for b in range(256)]
    draw.shuffle(tokens)
    known = set(tokens)
    while len(tokens) < 900:
        start, size = draw.randrange(len(data)), draw.randint(2, 9)
        piece = data[start : start + size]
        if piece not in known and any(
            piece[:c] in known and piece[c:] in known for c in range(1, len(piece))
        ):
            known.add(piece)
            tokens.append(piece)
    return {token: i for i, token in enumerate(tokens)}


def write(folder: Path, file: str, settings: dict[str, Any]) -> dict[bytes, int]:
    found = ranks()
    lines = [f"{base64.b64encode(t).decode()} {i}" for t, i in found.items()]
    (folder / file).write_text("\n".join(lines) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return found


@pytest.mark.parametrize(("file", "name", "pattern"), KINDS)
def test_ids_are_tiktokens(file: str, name: str, pattern: str, tmp_path: Path) -> None:
    added = {"900": {"content": "[BOS]"}, "903": {"content": "<|im_end|>"}}
    settings: dict[str, Any] = {"tokenizer_class": name, "bos_token": "[BOS]"}
    if name == "TikTokenTokenizer":
        settings["added_tokens_decoder"] = added
    found = write(tmp_path, file, settings)
    ours = Tokenizer(read_folder(tmp_path))
    theirs = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=found, special_tokens={})
    draw = random.Random(9)
    texts = [TEXT, *(TEXT[a : a + draw.randint(1, 40)] for a in range(0, len(TEXT), 3))]
    letters = "aA'sSdD 1水磨.\n\t eжЯ é🌊/!"
    texts += ["".join(draw.choices(letters, k=draw.randint(1, 30))) for _ in range(300)]
    for text in texts:
        read = unicodedata.normalize("NFC", text) if name == "QWenTokenizer" else text
        assert ours.encode(text, add_special=False) == theirs.encode(read), text
        assert ours.decode(ours.encode(text, add_special=False)) == read
    if name == "TikTokenTokenizer":
        assert ours.vocab_size == 900 + 256
        assert ours.encode("a[BOS]<|im_end|>", add_special=False)[1:] == [900, 903]
        assert ours.token_to_id("<|reserved_token_901|>") == 901
    if name == "QWenTokenizer":
        assert ours.token_to_id("<|im_end|>") == 902 and ours.vocab_size == 900 + 208


@pytest.mark.parametrize(
    ("content", "settings", "words"),
    [
        (None, {"tokenizer_class": "OtherTokenizer"}, "does not say how text is cut"),
        ("QQ== 0\n!! 1\n", {"tokenizer_class": "TikTokenTokenizer"}, "line 2 is not a token"),
        ("QQ== 1\n", {"tokenizer_class": "TikTokenTokenizer"}, "line 1: ranks must count up"),
        ("QQ== 0\n", {"tokenizer_class": "TikTokenTokenizer"}, "a single byte is none"),
        (
            None,
            {
                "tokenizer_class": "TikTokenTokenizer",
                "added_tokens_decoder": {"7": {"content": "[BOS]"}},
            },
            "ids from 900 on are free",
        ),
    ],
)
def test_a_file_that_cannot_be_read(
    content: str | None, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write(tmp_path, "tiktoken.model", settings)
    if content is not None:
        (tmp_path / "tiktoken.model").write_text(content)
    with pytest.raises(TidemillError, match=words):
        read_folder(tmp_path)
