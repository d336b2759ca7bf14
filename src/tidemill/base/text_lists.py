"""Lists of texts as a GGUF file has them, read from the mapped file when they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from tidemill.base import _texts
from tidemill.base.errors import model_file_error


class Texts(Sequence[str]):
    """A list of texts that stays in the file: an engine never looks at a vocabulary of 300,000
    tokens and merges, which would take a tenth of a second and tens of megabytes there.

    Args:
        view: the whole file.
        start: where the first text's length stands.
        count: of the texts.
        path: of the file, for errors.

    Attributes:
        end: the byte behind the last one.

    Raises:
        TidemillError: MODEL_FILE, here when a text leaves the file, when asked for a text that is
            no UTF-8.
    """

    def __init__(self, view: memoryview, start: int, count: int, path: Path) -> None:
        self._view, self._start, self._path = view, start, path
        self._ends = array("Q", bytes(8 * count))
        if not _texts.find_ends(view, start, self._ends):
            raise model_file_error(
                f"truncated at byte {len(view)}, or corrupt in a list of {count} texts at byte "
                f"{start}; fetch it again"
            )
        self.end = self._ends[-1] if count else start

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """A list of texts that is in memory, as one in a file.

        Raises:
            UnicodeEncodeError: a text holds a lone surrogate.
        """
        packed = bytearray()
        for text in texts:
            data = text.encode()
            packed += len(data).to_bytes(8, "little")
            packed += data
        return cls(memoryview(packed), 0, len(texts), Path("a list in memory"))

    @property
    def packed(self) -> tuple[memoryview, int, array[int]]:
        """The bytes they stand in, where the first length stands, and the byte behind each."""
        return self._view, self._start, self._ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        begin = (self._ends[place - 1] if place else self._start) + 8
        try:
            return str(self._view[begin : self._ends[place]], "utf-8")
        except UnicodeDecodeError as error:
            raise self._no_text(begin) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | Texts) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> list[str]:
        try:
            return _texts.decode(self._view, self._start, self._ends)
        except UnicodeDecodeError:
            return [self[i] for i in range(len(self))]  # raises at the first that is none

    def _no_text(self, position: int) -> Exception:
        return model_file_error(f"{self._path}: the text at byte {position} is no UTF-8")
