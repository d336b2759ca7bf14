"""Text to token ids and back, for any vocabulary that the `tokenizers` library supports.

A `Vocabulary` encodes, with the same ids as the original tokenizer. Decoding is our own: every
token has fixed bytes (`PieceTable`), as incremental detokenization, logprobs and token masks
require. It equals the library's decoding except for invalid UTF-8. Here each maximal invalid part
becomes one U+FFFD (the Unicode recommendation), in all families. The library's byte fallback
instead replaces every byte of the surrounding run of byte tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.base.byte_alphabet import byte_level_alphabet
from tidemill.base.errors import unsupported
from tidemill.text.detokenizer import Detokenizer
from tidemill.text.merged_vocabulary import open_merged
from tidemill.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tidemill.base.tokenizer_data import TokenizerData

SHORT_TEXT_CHARS = 1024
"""Up to this length, encoding in the event loop (about 0.2 ms) is cheaper than using a thread."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceTable(dict[int, bytes]):
    """Token id -> the bytes it adds to the text, computed at first use; unknown ids add nothing.

    Args:
        vocabulary: defines the ids.
        rules: convert a token's string to bytes.
        skipped: ids that add nothing (skipped special tokens).
    """

    def __init__(self, vocabulary: Vocabulary, rules: DecodeRules, skipped: frozenset[int]) -> None:
        super().__init__()
        self._token = vocabulary.id_to_token
        self._rules = rules
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        # Unknown ids are not stored, or a hostile client could grow the table.
        token = None if token_id in self._skipped else self._token(token_id)
        if token is None:
            return b""
        piece = self._rules.piece(token)
        self[token_id] = piece
        return piece


class DecodeRules:
    """The conversion of tokens to bytes, from the `decoder` section of a tokenizer.json.

    Attributes:
        strip: number of leading spaces removed from a whole text (SentencePiece's dummy prefix).
        joiner: what precedes each token that does not continue a word.

    Raises:
        TidemillError: kind UNSUPPORTED for a decoder that is not a per-token mapping.
    """

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        self.strip = 0
        self._byte_level = False
        self._byte_fallback = False
        self._replace: list[tuple[str, str]] = []
        self.joiner = ""
        self._continues: str | None = None
        self._alphabet = byte_level_alphabet()
        if decoder is None:
            # Without a decoder the library joins tokens with spaces.
            self.joiner, self.strip = " ", 1
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
            # `cleanup`, which removes spaces before punctuation, is ignored: it is not per token.
            self._continues, self.joiner, self.strip = part["prefix"], " ", 1
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
                # An added token is plain text, not encoded in the byte alphabet.
                return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self._continues and token.startswith(self._continues):
            return token.removeprefix(self._continues).encode()
        for old, new in self._replace:
            token = token.replace(old, new)
        return (self.joiner + token).encode()


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        vocab_size: number of token ids, added tokens included (the model's output layer may be
            larger: padding).
        special_ids: ids of special tokens; decoded text omits them by default.
        special: names as in tokenizer_config.json (``bos_token``) -> the token's text.
        notes: notes for the log about how the tokenizer was built; may be empty.

    Raises:
        TidemillError: kind MODEL_FILE if the tokenizer's data is missing or corrupt, UNSUPPORTED
            if its kind is not supported.
    """

    def __init__(self, data: TokenizerData) -> None:
        self._vocabulary = _open_vocabulary(data)
        self.vocab_size = self._vocabulary.size
        self.notes = list(self._vocabulary.notes)
        self.special = dict(data.special)
        if data.gguf is not None and data.tokenizer_json is None:
            from tidemill.text.gguf_vocab import left_out_notes, special_tokens

            self.notes += left_out_notes(data.gguf)
            self.special = {**special_tokens(data.gguf), **self.special}
        self.special_ids = frozenset(i for i, special in self._vocabulary.added.items() if special)
        self._rules = DecodeRules(self._vocabulary.decoder)
        self.strip = self._rules.strip
        self._pieces = PieceTable(self._vocabulary, self._rules, frozenset())
        self._visible = PieceTable(self._vocabulary, self._rules, self.special_ids)
        self._keeping: dict[frozenset[int], PieceTable] = {}
        self._prefix, self._suffix = self._vocabulary.prefix, self._vocabulary.suffix
        self._note_flags(data)

    def _note_flags(self, data: TokenizerData) -> None:
        """Note flags that are ignored.

        Only a tokenizer.json's post-processor determines the tokens around a text, as in
        transformers 5. If `add_bos_token` or `add_eos_token` of tokenizer_config.json contradict
        it, a note says so. A GGUF file's flags are already part of the vocabulary's affixes.
        """
        sides = (("bos", data.add_bos, self._prefix), ("eos", data.add_eos, self._suffix))
        for role, flag, ids in sides:
            token = self.special_id(f"{role}_token")
            if flag is not None and token is not None and flag != (token in ids):
                self.notes.append(
                    f"add_{role}_token is {str(flag).lower()} in tokenizer_config.json, but "
                    f"tokenizer.json does {'not ' * flag}add it; tokenizer.json takes precedence"
                )

    def only_literally(self) -> Tokenizer:
        """Encode every text literally from now on (`parse_special` is ignored); return self. This
        needs no second instance of the vocabulary."""
        self._vocabulary.only_literally()
        return self

    def forget_pieces(self) -> None:
        """Free the cached bytes of tokens; they are computed again on demand."""
        self._pieces.clear()
        self._visible.clear()

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text.
            add_special: add the model's start (and end) tokens, as for a plain completion prompt;
                False for text rendered by a chat template, which contains them.
            parse_special: encode the text of a special token as that token; False: as ordinary
                characters (added tokens that are not special stay tokens).

        Raises:
            TidemillError: kind BAD_REQUEST if the text is not valid Unicode.
        """
        ids = self._vocabulary.encode(text, literally=not parse_special)
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids of two texts as one input with the tokenizer's special tokens, and each token's
        type id (0, or 1 if the tokenizer marks the second text).

        Raises:
            TidemillError: kind BAD_REQUEST if a text is not valid Unicode.
        """
        return self._vocabulary.encode_pair(first, second)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence of token ids; invalid UTF-8 becomes U+FFFD."""
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(list(token_ids)) + detokenizer.finish()

    def pieces(
        self, *, skip_special_tokens: bool, kept: frozenset[int] = frozenset()
    ) -> PieceTable:
        """Token id -> bytes; skipped special tokens map to no bytes.

        Args:
            skip_special_tokens: skip special tokens.
            kept: special tokens that are not skipped: marks that a parser reads. Tables are cached
                per set, so there must be few different sets.
        """
        if not skip_special_tokens:
            return self._pieces
        if not kept:
            return self._visible
        if kept not in self._keeping:
            skipped = self.special_ids - kept
            self._keeping[kept] = PieceTable(self._vocabulary, self._rules, skipped)
        return self._keeping[kept]

    def unspaced_specials(self) -> dict[int, bytes]:
        """The bytes of each special token without the space that joins it to other tokens."""
        space = self._rules.joiner.encode()
        return {i: self._pieces[i].removeprefix(space) for i in self.special_ids}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text, including a leading space; b"" for unknown ids."""
        return self._pieces[token_id]

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string of a token, or None."""
        return self._vocabulary.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by the vocabulary's string, or None."""
        return self._vocabulary.token_to_id(token)

    def special_id(self, name: str) -> int | None:
        """Id of the special token with a role, for instance ``eos_token``, or None."""
        token = self.special.get(name)
        return None if token is None else self.token_to_id(token)

    def adds(self, name: str) -> bool:
        """True if `encode` adds the special token with this role to a plain text."""
        token = self.special_id(name)
        return token is not None and token in (*self._prefix, *self._suffix)

    @property
    def affixes(self) -> tuple[Sequence[int], Sequence[int]]:
        """The tokens that `add_special` puts before and after a text."""
        return self._prefix, self._suffix

    def starts_with_special(self, token_ids: Sequence[int]) -> bool:
        """True if the ids already begin with the tokens that `add_special` would prepend."""
        prefix = self._prefix
        return bool(prefix) and list(token_ids[: len(prefix)]) == prefix


def _open_vocabulary(data: TokenizerData) -> Vocabulary:
    merged = open_merged(data)
    if merged is not None:
        return merged
    from tidemill.text.library_vocabulary import LibraryVocabulary

    return LibraryVocabulary(data)
