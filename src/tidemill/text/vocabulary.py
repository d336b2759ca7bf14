"""The vocabulary interface of the tokenizer, and its errors."""

from __future__ import annotations

from typing import Any, Protocol

from tidemill.base.errors import TidemillError, bad_request


class Vocabulary(Protocol):
    """Texts to token ids and ids to tokens.

    Attributes:
        size: number of token ids, added tokens included.
        added: tokens matched in the text before pre-tokenization, by id; True if special.
        decoder: the `decoder` section of a tokenizer.json, or its equivalent.
        prefix, suffix: ids added around a text with `add_special`.
        notes: notes for the log about how it was built.
    """

    size: int
    added: dict[int, bool]
    decoder: dict[str, Any] | None
    prefix: list[int]
    suffix: list[int]
    notes: list[str]

    def encode(self, text: str, *, literally: bool) -> list[int]:
        """Ids of a text, without prefix and suffix; `literally`: special tokens' texts are ordinary
        characters.

        Raises:
            TidemillError: BAD_REQUEST for a text that is not valid Unicode or cannot be encoded.
        """

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Ids of two texts as one input with special tokens, and each token's type id."""

    def only_literally(self) -> None:
        """Encode every text literally from now on, whatever `encode`'s argument."""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string of a token, or None for an unknown id."""

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by the vocabulary's string, or None."""


def invalid_unicode() -> TidemillError:
    """The error for a text that is not valid Unicode."""
    return bad_request(
        None, "the text contains a lone surrogate (U+D800 to U+DFFF), which is not a character"
    )


def encoding_failed(length: int, reason: object) -> TidemillError:
    """The error for a text on which the tokenizer fails."""
    return bad_request(
        None,
        f"the model's tokenizer failed on this text of {length} characters ({reason}); very long "
        "runs of one character cause this: send it in smaller parts",
    )
