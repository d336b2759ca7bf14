"""What a tokenizer asks of a vocabulary, whoever keeps it."""

from __future__ import annotations

from typing import Any, Protocol

from tidemill.base.errors import TidemillError, bad_request


class Vocabulary(Protocol):
    """Texts to token ids and ids to tokens.

    Attributes:
        size: number of token ids, added tokens included.
        added: tokens found in the text before it is cut into words, by id; True where special.
        decoder: the `decoder` section as a tokenizer.json would have it.
        prefix, suffix: ids put around a text when special tokens are asked for.
        notes: what a person should know about how it was built.
    """

    size: int
    added: dict[int, bool]
    decoder: dict[str, Any] | None
    prefix: list[int]
    suffix: list[int]
    notes: list[str]

    def encode(self, text: str, *, literally: bool) -> list[int]:
        """Ids of a text, without those around it; special tokens' spellings are characters if it is
        read literally.

        Raises:
            TidemillError: BAD_REQUEST for a text that is no Unicode, or that is given up on.
        """

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Ids of two texts as one input with special tokens around, and each one's type."""

    def only_literally(self) -> None:
        """Every text is read literally from now on, whatever is asked."""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token, or None for an id it does not have."""

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by the vocabulary's own spelling, or None."""


def no_unicode() -> TidemillError:
    """The error about a text that cannot be encoded."""
    return bad_request(
        None, "the text holds a lone surrogate (U+D800 to U+DFFF), which is not a character"
    )


def gave_up(length: int, reason: object) -> TidemillError:
    """The error about a text that a tokenizer does not come to an end with."""
    return bad_request(
        None,
        f"the model's tokenizer gave up on this text of {length} characters ({reason}); very long "
        "runs of one character do that: send it in smaller parts",
    )
