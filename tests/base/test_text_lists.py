"""Lists of texts that stay in the file."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.text_lists import Texts

PATH = Path("model.gguf")
WORDS = ["", "a", "né", "漢字" * 200, "\x00", " b c", "end"]


def _stored(words: Sequence[str | bytes], before: bytes = b"head") -> memoryview:
    parts = [w if isinstance(w, bytes) else w.encode() for w in words]
    return memoryview(before + b"".join(struct.pack("<Q", len(p)) + p for p in parts) + b"tail")


def test_they_are_a_sequence() -> None:
    view = _stored(WORDS)
    texts = Texts(view, 4, len(WORDS), PATH)
    assert list(texts) == WORDS and texts == WORDS and len(texts) == len(WORDS)
    assert [texts[i] for i in range(len(WORDS))] == WORDS and texts[-1] == "end"
    assert texts[2:5] == WORDS[2:5] and "né" in texts and texts.index("a") == 1
    assert texts.end == len(view) - len(b"tail")
    assert texts != WORDS[1:] and texts == Texts(view, 4, len(WORDS), PATH)
    for outside in (len(WORDS), -len(WORDS) - 1):
        with pytest.raises(IndexError):
            texts[outside]


def test_some_of_them_are_found_in_one_go() -> None:
    texts = Texts(_stored(WORDS), 4, len(WORDS), PATH)
    assert texts.at([0, 1, 3, 6]) == [WORDS[i] for i in (0, 1, 3, 6)]
    assert texts.at([6]) == ["end"] and texts.at([2, 2]) == ["né", "né"] and texts.at([]) == []


def test_a_list_in_memory_is_one_too() -> None:
    texts = Texts.of(WORDS)
    assert texts == WORDS and [texts[i] for i in range(len(WORDS))] == WORDS
    view, start, ends = texts.packed
    assert (start, len(ends), ends[-1]) == (0, len(WORDS), len(view))
    with pytest.raises(UnicodeEncodeError):
        Texts.of(["\ud800"])


def test_none_are_an_empty_list() -> None:
    texts = Texts(_stored([]), 4, 0, PATH)
    assert not texts and list(texts) == [] and texts.end == 4


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_list_that_leaves_the_file_is_refused(cut: int) -> None:
    view = _stored(["abc", "defgh", "i"])[: -len(b"tail")]
    with pytest.raises(TidemillError, match="truncated") as caught:
        Texts(view[:-cut], 4, 3, PATH)
    assert caught.value.kind is ErrorKind.MODEL_FILE


@pytest.mark.parametrize("length", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_huge_length_is_refused(length: int, place: int) -> None:
    lengths = [1, 1, 1]
    lengths[place] = length
    view = memoryview(b"".join(struct.pack("<Q", n) + b"x" for n in lengths))
    with pytest.raises(TidemillError, match="truncated"):
        Texts(view, 0, 3, PATH)


def test_bytes_that_are_no_text_are_named_when_asked_for() -> None:
    texts = Texts(_stored(["a", b"\xff\xfe", "b"]), 4, 3, PATH)
    assert texts[0] == "a" and texts[2] == "b"
    for look in (lambda: texts[1], lambda: list(texts)):
        with pytest.raises(TidemillError, match=r"model\.gguf: the text at byte 21 is no UTF-8"):
            look()
