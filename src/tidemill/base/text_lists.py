"""Lists of strings in a GGUF file, read lazily from the mapped file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
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
        self._view, self._start, self._count, self._path = view, start, count, path
        end = _texts.skip(view, start, count)
        if end is None:
            raise model_file_error(
                f"truncated at byte {len(view)}, or corrupt in a list of {count} texts at byte "
                f"{start}; fetch it again"
            )
        self.end = end

    @cached_property
    def _ends(self) -> array[int]:
        """The byte behind each; a megabyte for 150,000 texts, found when many are asked for."""
        ends = array("Q", bytes(8 * self._count))
        _texts.find_ends(self._view, self._start, ends)
        return ends

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
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            _ = self._ends
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._text(self._behind(range(len(self))[index]))

    def at(self, places: Iterable[int]) -> list[str]:
        """Those at these places, which ascend; the list is gone through once."""
        found, position, passed = [], self._start, 0
        for place in places:
            behind = _texts.skip(self._view, position, place - passed)
            assert behind is not None
            found.append(self._text(behind))
            position, passed = behind, place
        return found

    def _text(self, position: int) -> str:
        """The one whose length stands there."""
        begin = position + 8
        length = int.from_bytes(self._view[position:begin], "little")
        try:
            return str(self._view[begin : begin + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self._no_text(begin) from error

    def _behind(self, count: int) -> int:
        """The byte behind so many of them, of which there are as many."""
        if "_ends" in self.__dict__:
            return self._ends[count - 1] if count else self._start
        found = _texts.skip(self._view, self._start, count)
        assert found is not None
        return found

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
