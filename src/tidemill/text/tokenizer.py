"""Text to token ids and back, for any vocabulary the `tokenizers` library can express.

Encoding is the library's, so that ids equal the original's. Decoding is our own: every token has
fixed bytes (`PieceTable`), which is what incremental detokenization, logprobs and token masks need.
It equals the library's decoding except where the output is not valid UTF-8: there each maximal
invalid part becomes one U+FFFD (the Unicode recommendation), for every family alike, while the
library's byte fallback replaces each byte of the whole run of byte tokens around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tokenizers

from tidemill.base.byte_alphabet import byte_level_alphabet
from tidemill.base.errors import TidemillError, bad_request, model_file_error, unsupported
from tidemill.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from tidemill.base.tokenizer_data import TokenizerData

SHORT_TEXT_CHARS = 1024
"""Up to here encoding in the event loop (about 0.2 ms) is cheaper than a thread's hand-over."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceTable(dict[int, bytes]):
    """Token id -> the bytes it adds to the text, computed at first use; unknown ids add nothing.

    Args:
        backend: the vocabulary.
        rules: how a token's string becomes bytes.
        skipped: ids that add nothing (special tokens, when they are not wanted).
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, rules: DecodeRules, skipped: frozenset[int]
    ) -> None:
        super().__init__()
        self._token = backend.id_to_token
        self._rules = rules
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        # Unknown ids are not stored: a hostile client must not be able to grow the table.
        if token_id < 0 or token_id in self._skipped:
            return b""
        try:
            token = self._token(token_id)
        except OverflowError:
            return b""
        if token is None:
            return b""
        piece = self._rules.piece(token)
        self[token_id] = piece
        return piece


class DecodeRules:
    """How tokens become bytes, read from the `decoder` section of a tokenizer.json.

    Attributes:
        strip: how many leading spaces the whole text loses (SentencePiece's dummy prefix).

    Raises:
        TidemillError: kind UNSUPPORTED for a decoder that is not a per-token mapping.
    """

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        self.strip = 0
        self._byte_level = False
        self._byte_fallback = False
        self._replace: list[tuple[str, str]] = []
        self._joiner = ""
        self._continues: str | None = None
        self._alphabet = byte_level_alphabet()
        if decoder is None:
            # Without a decoder the library joins tokens with spaces.
            self._joiner, self.strip = " ", 1
            return
        parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        for part in parts:
            self._add(part)

    def _add(self, part: dict[str, Any]) -> None:
        kind = part["type"]
        if kind == "ByteLevel":
            self._byte_level = True
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind == "Replace" and "String" in part["pattern"]:
            self._replace.append((part["pattern"]["String"], part["content"]))
        elif kind == "Metaspace":
            self._replace.append((part.get("replacement", "▁"), " "))
            scheme = part.get("prepend_scheme")
            prefixed = scheme != "never" if scheme else part.get("add_prefix_space", True)
            self.strip = 1 if prefixed else 0
        elif kind == "WordPiece":
            # `cleanup`, which takes blanks away before signs, is not followed: it is no mapping.
            self._continues, self._joiner, self.strip = part["prefix"], " ", 1
        elif kind == "Strip" and part["content"] == " " and not part["stop"]:
            self.strip = part["start"]
        elif kind != "Fuse":
            raise unsupported(
                "tokenizer.json",
                f"the tokenizer's decoder {kind!r} is not supported; "
                "supported are ByteLevel, Metaspace, ByteFallback, WordPiece, Replace, Strip, Fuse",
            )

    def piece(self, token: str) -> bytes:
        """The bytes of one token."""
        if self._byte_level:
            try:
                return bytes([self._alphabet[c] for c in token])
            except KeyError:
                # An added token that is written as itself, not in the alphabet of bytes.
                return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self._continues and token.startswith(self._continues):
            return token.removeprefix(self._continues).encode()
        for old, new in self._replace:
            token = token.replace(old, new)
        return (self._joiner + token).encode()


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        vocab_size: number of token ids, added tokens included (the model's output layer may be
            larger: padding).
        special_ids: ids of special tokens; they are not part of decoded text by default.
        special: names as in tokenizer_config.json (``bos_token``) -> the token's text.
        notes: what a person should know about how the tokenizer was built; empty if nothing.

    Raises:
        TidemillError: kind MODEL_FILE if the tokenizer's data is missing or corrupt, UNSUPPORTED
            if it is of a kind we do not read.
    """

    def __init__(self, data: TokenizerData) -> None:
        self.notes: list[str] = []
        self._backend = self._build(data)
        self._backend.no_truncation()  # nothing is dropped silently
        self._backend.no_padding()
        self._literal: tokenizers.Tokenizer | None = None
        self.vocab_size = self._backend.get_vocab_size(with_added_tokens=True)
        self.special = dict(data.special)
        if data.gguf is not None and data.tokenizer_json is None:
            from tidemill.text.gguf_vocab import special_tokens

            self.special = {**special_tokens(data.gguf), **self.special}
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._rules = DecodeRules(_decoder_of(self._backend))
        self.strip = self._rules.strip
        self._pieces = PieceTable(self._backend, self._rules, frozenset())
        self._visible = PieceTable(self._backend, self._rules, self.special_ids)
        self._keeping: dict[frozenset[int], PieceTable] = {}
        self._prefix, self._suffix = self._affixes(data)

    def _build(self, data: TokenizerData) -> tokenizers.Tokenizer:
        if data.tokenizer_json is not None:
            with _reading("tokenizer.json", "tokenizer.json"):
                return tokenizers.Tokenizer.from_buffer(bytes(data.tokenizer_json))
        if data.gguf is not None:
            from tidemill.text.gguf_vocab import tokenizer_from_gguf

            with _reading("the vocabulary", "tokenizer.ggml.tokens"):
                backend, self.notes = tokenizer_from_gguf(data.gguf)
            return backend
        raise model_file_error(
            "the model has no tokenizer: put its tokenizer.json into the model's folder",
            param="tokenizer.json",
        )

    def _affixes(self, data: TokenizerData) -> tuple[list[int], list[int]]:
        """Ids put before and after a text when special tokens are asked for.

        They come from the post-processor. A tokenizer.json is the whole truth (transformers 5 reads
        it so too): where tokenizer_config.json's `add_bos_token` and `add_eos_token` contradict it,
        a note says that they are not followed. A GGUF file's flags already made its post-processor.
        """
        plain = self._encode(self._backend, "a", False)
        full = self._encode(self._backend, "a", True)
        start = next(
            (i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0 if full else None
        )
        prefix, suffix = ([], []) if start is None else (full[:start], full[start + len(plain) :])
        for role, flag, ids in (("bos", data.add_bos, prefix), ("eos", data.add_eos, suffix)):
            token = self.special_id(f"{role}_token")
            if flag is not None and token is not None and flag != (token in ids):
                self.notes.append(
                    f"add_{role}_token is {str(flag).lower()} in tokenizer_config.json, but "
                    f"tokenizer.json does {'not ' * flag}add it; tokenizer.json is followed"
                )
        return prefix, suffix

    @classmethod
    def _encode(cls, backend: tokenizers.Tokenizer, text: str, add_special: bool) -> list[int]:
        return cls._encoding(backend, text, add_special).ids

    @staticmethod
    def _encoding(
        backend: tokenizers.Tokenizer, text: str | tuple[str, str], add_special: bool
    ) -> tokenizers.Encoding:
        # Unlike `encode`, the batch call releases the GIL while it works.
        try:
            return backend.encode_batch_fast([text], add_special_tokens=add_special)[0]
        except (TypeError, UnicodeEncodeError) as error:
            raise bad_request(
                None, "the text holds a lone surrogate (U+D800 to U+DFFF), which is not a character"
            ) from error
        except BaseException as error:
            if not _is_panic(error) and type(error) is not Exception:  # its errors are bare ones
                raise
            raise bad_request(
                None,
                f"the model's tokenizer gave up on this text of {_length(text)} characters "
                f"({error}); very long runs of one character do that: send it in smaller parts",
            ) from error

    def only_literally(self) -> Tokenizer:
        """This tokenizer, whose every text is taken literally from now on (`parse_special` counts
        no more): it needs no second instance for that."""
        self._backend.encode_special_tokens = True
        self._literal = self._backend
        return self

    def forget_pieces(self) -> None:
        """Free the bytes of the tokens looked up so far; they are computed again when asked for."""
        self._pieces.clear()
        self._visible.clear()

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text.
            add_special: put the model's own start (and end) tokens around it, as for a plain
                completion prompt; False for text rendered by a chat template, which has them.
            parse_special: the spelling of a special token in the text is that token; False reads
                it as ordinary characters (added tokens that are not special stay tokens).

        Raises:
            TidemillError: kind BAD_REQUEST if the text is not valid Unicode.
        """
        ids = self._encode(self._backend if parse_special else self._without_special(), text, False)
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids of two texts as one input, with the tokenizer's own special tokens around them,
        and each token's type (0, or 1 where the tokenizer marks the second text).

        Raises:
            TidemillError: kind BAD_REQUEST if a text is not valid Unicode.
        """
        encoding = self._encoding(self._backend, (first, second), True)
        return encoding.ids, encoding.type_ids

    async def encode_async(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """`encode`, in a thread when the text is long, so that the event loop stays free."""
        if len(text) <= SHORT_TEXT_CHARS:
            return self.encode(text, add_special=add_special, parse_special=parse_special)
        return await asyncio.to_thread(
            self.encode, text, add_special=add_special, parse_special=parse_special
        )

    def _without_special(self) -> tokenizers.Tokenizer:
        """A second instance that reads special tokens as text; made at first use.

        The library keeps this as a property of the tokenizer, so one instance cannot serve both.
        """
        if self._literal is None:
            literal = tokenizers.Tokenizer.from_str(self._backend.to_str())
            literal.encode_special_tokens = True
            self._literal = literal
        return self._literal

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence of token ids; invalid UTF-8 becomes U+FFFD."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(list(token_ids)) + detokenizer.finish()

    def pieces(
        self, *, skip_special_tokens: bool, kept: frozenset[int] = frozenset()
    ) -> PieceTable:
        """Token id -> bytes; special tokens map to nothing if they are skipped.

        Args:
            skip_special_tokens: leave special tokens out.
            kept: special tokens that are text all the same: marks that a parser reads. The tables
                are kept, so there must be few different sets of them.
        """
        if not skip_special_tokens:
            return self._pieces
        if not kept:
            return self._visible
        if kept not in self._keeping:
            skipped = self.special_ids - kept
            self._keeping[kept] = PieceTable(self._backend, self._rules, skipped)
        return self._keeping[kept]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text (a leading space included); b"" for unknown ids."""
        return self._pieces[token_id]

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token, or None."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**31 else None

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by the vocabulary's own spelling, or None."""
        return self._backend.token_to_id(token)

    def special_id(self, name: str) -> int | None:
        """Id of the special token with a role, for instance ``eos_token``; None without one."""
        token = self.special.get(name)
        return None if token is None else self.token_to_id(token)

    def adds(self, name: str) -> bool:
        """True when `encode` puts the special token with this role around a plain text."""
        token = self.special_id(name)
        return token is not None and token in (*self._prefix, *self._suffix)

    def starts_with_special(self, token_ids: Sequence[int]) -> bool:
        """True when the ids already begin with what `add_special` would put in front."""
        prefix = self._prefix
        return bool(prefix) and list(token_ids[: len(prefix)]) == prefix


def _is_panic(error: BaseException) -> bool:
    """A panic of the library's Rust code, which is no Exception; its class cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def _reading(what: str, param: str) -> Iterator[None]:
    """The library gives up on a model's file: an error of ours, and no end of the process."""
    try:
        yield
    except TidemillError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise model_file_error(f"{what} cannot be read: {error}", param=param) from error


def _decoder_of(backend: tokenizers.Tokenizer) -> dict[str, Any] | None:
    """The decoder's description. Pickling a component yields its JSON alone, not the vocabulary."""
    decoder = backend.decoder
    if decoder is None:
        return None
    state = decoder.__getstate__()
    parsed: dict[str, Any] = json.loads(state)
    return parsed


def _length(text: str | tuple[str, str]) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))
