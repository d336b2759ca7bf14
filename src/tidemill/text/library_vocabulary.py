"""Vocabularies encoded by the `tokenizers` library: every kind that it supports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import tokenizers

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.text.vocabulary import encoding_failed, invalid_unicode


class LibraryVocabulary:
    """See `Vocabulary`.

    Raises:
        TidemillError: MODEL_FILE if the data are missing or corrupt, UNSUPPORTED if their kind is
            not supported.
    """

    def __init__(self, data: TokenizerData) -> None:
        self.notes: list[str] = []
        self._backend = self._build(data)
        self._backend.no_truncation()  # nothing may be dropped silently
        self._backend.no_padding()
        self._literal: tokenizers.Tokenizer | None = None
        self.size = self._backend.get_vocab_size(with_added_tokens=True)
        added = self._backend.get_added_tokens_decoder()
        self.added = {i: token.special for i, token in added.items()}
        self.decoder = _decoder_of(self._backend)
        self.prefix, self.suffix = self._affixes()

    def _build(self, data: TokenizerData) -> tokenizers.Tokenizer:
        if data.tokenizer_json is not None:
            with _reading("tokenizer.json", "tokenizer.json"):
                return tokenizers.Tokenizer.from_buffer(bytes(data.tokenizer_json))
        if data.gguf is not None:
            from tidemill.text.gguf_library import tokenizer_from_gguf

            with _reading("the vocabulary", "tokenizer.ggml.tokens"):
                backend, self.notes = tokenizer_from_gguf(data.gguf)
            return backend
        raise model_file_error(
            "the model has no tokenizer: add its tokenizer.json to the model's folder",
            param="tokenizer.json",
        )

    def _affixes(self) -> tuple[list[int], list[int]]:
        """The token ids that the post-processor adds before and after a text."""
        plain = _encoding(self._backend, "a", False).ids
        full = _encoding(self._backend, "a", True).ids
        start = next(
            (i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0 if full else None
        )
        return ([], []) if start is None else (full[:start], full[start + len(plain) :])

    def encode(self, text: str, *, literally: bool) -> list[int]:
        """See `Vocabulary`."""
        backend = self._without_special() if literally else self._backend
        return _encoding(backend, text, False).ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """See `Vocabulary`."""
        encoding = _encoding(self._backend, (first, second), True)
        return encoding.ids, encoding.type_ids

    def only_literally(self) -> None:
        """See `Vocabulary`; no second instance is needed then."""
        self._backend.encode_special_tokens = True
        self._literal = self._backend

    def _without_special(self) -> tokenizers.Tokenizer:
        """A second instance that encodes special tokens as text; created at first use.

        In the library this is a property of the tokenizer, so one instance cannot serve both.
        """
        if self._literal is None:
            literal = tokenizers.Tokenizer.from_str(self._backend.to_str())
            literal.encode_special_tokens = True
            self._literal = literal
        return self._literal

    def id_to_token(self, token_id: int) -> str | None:
        """See `Vocabulary`."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**31 else None

    def token_to_id(self, token: str) -> int | None:
        """See `Vocabulary`."""
        return self._backend.token_to_id(token)


def _encoding(
    backend: tokenizers.Tokenizer, text: str | tuple[str, str], add_special: bool
) -> tokenizers.Encoding:
    # Unlike `encode`, the batch call releases the GIL while it works.
    try:
        return backend.encode_batch_fast([text], add_special_tokens=add_special)[0]
    except (TypeError, UnicodeEncodeError) as error:
        raise invalid_unicode() from error
    except BaseException as error:
        if not _is_panic(error) and type(error) is not Exception:  # the library raises Exception
            raise
        length = len(text) if isinstance(text, str) else sum(map(len, text))
        raise encoding_failed(length, error) from error


def _is_panic(error: BaseException) -> bool:
    """A panic of the library's Rust code. It is not an Exception; its class is not importable."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def _reading(what: str, param: str) -> Iterator[None]:
    """Convert the library's errors and panics about a model file to `TidemillError`."""
    try:
        yield
    except TidemillError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        advice = "; it looks truncated: fetch it again" if "EOF while" in str(error) else ""
        raise model_file_error(f"{what} cannot be read: {error}{advice}", param=param) from error


def _decoder_of(backend: tokenizers.Tokenizer) -> dict[str, Any] | None:
    """The decoder's description. Pickling a component yields only its JSON, not the vocabulary."""
    decoder = backend.decoder
    if decoder is None:
        return None
    state = decoder.__getstate__()
    parsed: dict[str, Any] = json.loads(state)
    return parsed
