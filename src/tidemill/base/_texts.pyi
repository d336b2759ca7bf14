from array import array
from collections.abc import Sequence
from typing import Any

def find_ends(data: memoryview, start: int, ends: array[int]) -> bool:
    """Where texts end that stand one behind the other, each behind its length in 8 bytes.

    Args:
        data: uint8 [size].
        start: the byte where the first length stands.
        ends: uint64 [count], written: the byte behind each text.

    Returns:
        False when a text leaves the data.
    """

def skip(data: memoryview, start: int, count: int) -> int | None:
    """The byte behind so many of such texts; None when one leaves the data."""

def decode(data: memoryview, start: int, ends: array[int]) -> list[str]:
    """The texts that `find_ends` found.

    Raises:
        UnicodeDecodeError: one is no UTF-8.
    """

def merges(lines: list[str], keys: dict[str, int], texts: list[str]) -> list[tuple[str, str]] | int:
    """Both halves of each line ``left right``, as they are in `texts`.

    Args:
        lines: taken from the list one by one.
        keys: places in `texts`.
        texts: all that may be a half, or both together.

    Returns:
        The place of the first line that has no blank behind its first character, or whose halves or
        both together are no key.
    """

def find_model(data: bytes | memoryview) -> tuple[int, int, int, int] | None:
    """Where the values of model.vocab and model.merges begin and end in a tokenizer.json; None
    where it is no JSON object with one of each."""

class Encoder:
    """A byte-level BPE vocabulary and its encoding.

    Byte pair encoding: Sennrich, Haddow and Birch 2016; over bytes as characters: Radford et al.
    2019 (GPT-2).
    """

    @staticmethod
    def of_texts(
        tokens: tuple[memoryview, int, array[int]],
        merges: tuple[memoryview, int, array[int]],
        whole_words: bool,
    ) -> Encoder | int | None:
        """From lists as `find_ends` found them: data, where they start, ends.

        Args:
            tokens: by id. Of two alike the last one counts.
            merges: lines ``left right``, best first.
            whole_words: a word that is a token is taken as it is, whatever the merges say.

        Returns:
            The place of the first merge whose parts or both together are no tokens; None where a
            text is no UTF-8.
        """

    @staticmethod
    def of_json(
        data: bytes | memoryview,
        vocabulary: int,
        vocabulary_end: int,
        merges: int,
        merges_end: int,
        whole_words: bool,
    ) -> Encoder | None:
        """From a tokenizer.json, where `find_model` found them; None where they are not sound."""

    def set_cuts(self, rules: list[tuple[str, bool]]) -> bool:
        """Regular expressions that cut text into words, one after another; beside each whether what
        stands between its matches is a word too. False, and nothing changed, if one has what is
        not known here."""

    def set_marks(
        self, early: Sequence[tuple[str, int, bool]], late: Sequence[tuple[str, int, bool]]
    ) -> None:
        """Tokens found in the text before it is cut: text, id, whether special. Late ones are found
        in what the early ones leave."""

    def encode(self, text: str, literally: bool, normalized: bool = False) -> list[int]:
        """Ids of a text. The GIL is free meanwhile.

        Args:
            literally: special marks are characters.
            normalized: it is a part that `split` gave; early marks are not looked for.

        Raises:
            UnicodeEncodeError: the text holds a lone surrogate.
            RuntimeError: a word rule finds too many ways to match.
        """

    def split(self, text: str, literally: bool) -> list[int | str]:
        """The text between early marks, and the marks' ids, in order."""

    def token_to_id(self, text: str) -> int | None: ...
    def id_to_token(self, id: int) -> str | None: ...
    def __len__(self) -> int:
        """Texts."""

class RepeatIndex:
    """A growing text of tokens: where its end occurred before, and what followed there.

    A suffix automaton (Blumer et al. 1985) with counts, built in linear time. It takes 50 to 150
    bytes a token.

    Args:
        most: of a longer text only the latest tokens are indexed, at least half as many.
    """

    def __init__(self, most: int) -> None: ...
    def extend(self, tokens: Any) -> None:
        """Append tokens: int32 [count], none negative."""

    def separate(self) -> None:
        """End a text; nothing is found or proposed across its end."""

    def propose(self, count: int) -> list[int]:
        """What followed the match most often, of equals the latest, then what followed that, and so
        on: up to `count` tokens; none without a match."""

    @property
    def match(self) -> int:
        """Tokens at the end of the text that occurred before as a whole."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    def __len__(self) -> int:
        """Tokens indexed, separators included."""
