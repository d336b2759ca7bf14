"""What C++ does to lists of texts; in files they are read by `base.text_lists`."""

from __future__ import annotations

import random
import struct
from array import array

import pytest

from tidemill.base import _texts

WORDS = ["", "a", "né", "漢字" * 200, "\x00", " b c", "\U0001f30a", "end"]


def stored(words: list[bytes], before: bytes = b"head") -> bytes:
    return before + b"".join(struct.pack("<Q", len(word)) + word for word in words)


def test_ends_and_texts() -> None:
    data = memoryview(stored([word.encode() for word in WORDS]) + b"tail")
    ends = array("Q", bytes(8 * len(WORDS)))
    assert _texts.find_ends(data, 4, ends) and ends[-1] == len(data) - 4
    assert _texts.decode(data, 4, ends) == WORDS
    assert _texts.find_ends(data, 4, array("Q")) and _texts.decode(data, 4, array("Q")) == []


@pytest.mark.parametrize("start", [0, 4, 10**6, 2**64 - 1])
def test_a_length_is_believed_only_within_the_data(start: int) -> None:
    for length in (1, 7, 8, 2**32, 2**63 - 1, 2**63, 2**64 - 9, 2**64 - 1):
        data = memoryview(b"head" + struct.pack("<Q", length))
        assert not _texts.find_ends(data, start, array("Q", bytes(8)))
    assert not _texts.find_ends(memoryview(b"head" + bytes(7)), 4, array("Q", bytes(8)))


def test_random_bytes_stay_within_the_data() -> None:
    rng, found = random.Random(0), 0
    for _ in range(2000):
        data = b"".join(
            struct.pack("<Q", rng.choice((0, 1, 2, 3, 9, 2**32))) + rng.randbytes(rng.randrange(4))
            for _ in range(rng.randrange(1, 8))
        )
        ends = array("Q", bytes(8 * rng.randrange(1, 6)))
        if _texts.find_ends(memoryview(data), 0, ends):
            found += 1
            assert list(ends) == sorted(ends) and ends[-1] <= len(data)
    assert found > 200


@pytest.mark.parametrize("ends", [[7], [11, 12], [2**64 - 1], [100], [12, 4]])
def test_ends_of_other_data_are_refused(ends: list[int]) -> None:
    data = memoryview(stored([b"abc"]))
    with pytest.raises(IndexError):
        _texts.decode(data, 4, array("Q", ends))


def test_bytes_that_are_no_text() -> None:
    data = memoryview(stored([b"a", b"\xc3", b"b"]))
    ends = array("Q", bytes(24))
    assert _texts.find_ends(data, 4, ends)
    with pytest.raises(UnicodeDecodeError):
        _texts.decode(data, 4, ends)


def test_merges_are_the_texts_themselves() -> None:
    texts = ["a", "b", "ab", "ü", "abü", " ", " a", "a b"]
    keys = {text: place for place, text in enumerate(texts)}
    lines = ["a b", "ab ü", "  a", "a  b"[:2] + "b"]
    found = _texts.merges(lines, keys, texts)
    assert found == [("a", "b"), ("ab", "ü"), (" ", "a"), ("a", "b")]
    assert isinstance(found, list) and found[1][0] is texts[2]
    assert lines == [None] * 4  # let go one by one


@pytest.mark.parametrize("odd", ["ab", "", " ", "a", " b", "a c", "c a", "b a", "a b c", "ü b"])
def test_the_first_odd_line_is_named(odd: str) -> None:
    texts = ["a", "b", "ab", "ü"]
    keys = {text: place for place, text in enumerate(texts)}
    assert _texts.merges(["a b", odd, "a b"], keys, texts) == 1


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError):
        _texts.merges([1], {}, [])  # type: ignore[list-item]
    with pytest.raises(IndexError):
        _texts.merges(["a b"], {"a": 5}, ["a"])
    with pytest.raises(TypeError):
        _texts.merges(["a b"], {"a": "x"}, ["a"])  # type: ignore[dict-item]
