"""Models with one vocabulary draft for each other; others are told apart with the reason."""

from __future__ import annotations

import json
from typing import Any

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.worker.speculate.vocabulary import difference, token_strings

TOKENS = [f"t{i}" for i in range(40)]


def folder(tokens: list[str], added: dict[int, str] | None = None, **model: Any) -> TokenizerData:
    added = added or {}
    file = {
        "model": {"vocab": {t: i for i, t in enumerate(tokens)}, **model},
        "added_tokens": [{"id": i, "content": t} for i, t in added.items()],
    }
    return TokenizerData(tokenizer_json=json.dumps(file).encode())


def gguf(tokens: list[str]) -> TokenizerData:
    return TokenizerData(gguf={"tokenizer.ggml.tokens": tokens})


def test_the_same_in_other_files() -> None:
    assert difference(folder(TOKENS), folder(TOKENS)) == ""
    assert difference(folder(TOKENS), gguf(TOKENS)) == ""
    assert difference(folder(TOKENS[:38], {38: "t38", 39: "t39"}), gguf(TOKENS)) == ""
    unigram = folder(TOKENS, vocab=[[t, -1.0] for t in TOKENS])
    assert token_strings(unigram) == dict(enumerate(TOKENS))
    assert difference(unigram, gguf(TOKENS)) == ""
    assert difference(folder(TOKENS), gguf([*TOKENS, "pad"])) == "", "padded"
    assert difference(TokenizerData(), TokenizerData()) == ""


def test_differences_are_named() -> None:
    other = [*TOKENS[:7], "other", *TOKENS[8:]]
    assert "token 7 is 't7' in one and 'other' in the other" in difference(
        folder(TOKENS), gguf(other)
    )
    assert difference(folder(TOKENS), folder(TOKENS[:30])) == "one has 40 tokens, the other 30"
    assert "no vocabulary" in difference(folder(TOKENS), TokenizerData())
