"""Detokenization and stop strings combined."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.text.output import OutputText
from tidemill.text.tokenizer import Tokenizer

from .test_stops import naive


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token per byte."""
    ids = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [ids[bytes([b])] for b in text.encode()]


def test_stop_string_ends_the_text_and_the_count(byte_tokenizer: Tokenizer) -> None:
    output = OutputText(byte_tokenizer, stop=["END"])
    ids = spell(byte_tokenizer, "ab END surplus")
    text, stopped = output.push(ids)
    assert (text, stopped) == ("ab ", True)
    assert output.stop_string == "END"
    assert output.tokens == len("ab END")
    assert output.push(ids) == ("", True)
    assert output.tokens == len("ab END")
    assert output.finish() == ""


def test_min_tokens_lets_early_stop_strings_pass(byte_tokenizer: Tokenizer) -> None:
    ids = spell(byte_tokenizer, "a.b.c.d")
    for least, expected in [(0, "a"), (2, "a"), (3, "a.b"), (5, "a.b.c"), (7, "a.b.c.d")]:
        output = OutputText(byte_tokenizer, stop=["."], min_tokens=least)
        text = output.push(ids)[0] + output.finish()
        assert text == expected
        assert output.tokens >= least


@pytest.mark.parametrize(("least", "shown"), [(0, "a"), (2, "a"), (3, "a\ufffd")])
def test_a_character_cut_off_at_the_end_may_complete_a_stop_string(
    byte_tokenizer: Tokenizer, least: int, shown: str
) -> None:
    output = OutputText(byte_tokenizer, stop=["\ufffd"], min_tokens=least)
    [first, *_] = spell(byte_tokenizer, "🦙")
    text = output.push([*spell(byte_tokenizer, "a"), first])[0] + output.finish()
    assert text == shown
    assert output.stopped is (shown == "a")


def test_end_token_has_no_text(byte_tokenizer: Tokenizer) -> None:
    ids = spell(byte_tokenizer, "hi.")
    for track in (False, True):
        output = OutputText(byte_tokenizer, track=track)
        assert output.push(ids, hide_last=True)[0] + output.finish() == "hi"
        assert output.tokens == 3


def test_offsets_and_bytes_of_tokens(byte_tokenizer: Tokenizer) -> None:
    output = OutputText(byte_tokenizer, track=True)
    ids = spell(byte_tokenizer, "aé🦙b")
    output.push(ids)
    assert b"".join(output.pieces).decode() == "aé🦙b"
    assert output.offsets == [0, 1, 1, 2, 2, 2, 2, 3]


def test_chat_text_starts_without_the_dummy_space(space_tokenizer: Tokenizer) -> None:
    ids = space_tokenizer.encode("hello", add_special=False)
    assert OutputText(space_tokenizer, at_start=True).push(ids)[0] == "hello"
    assert OutputText(space_tokenizer).push(ids)[0] == " hello"


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="aé🦙", max_size=20),
    stops=st.lists(st.text(alphabet="aé🦙", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    track=st.booleans(),
)
def test_streaming_equals_the_whole(
    byte_tokenizer: Tokenizer, text: str, stops: list[str], cuts: list[int], track: bool
) -> None:
    ids = spell(byte_tokenizer, text)
    marks = [0, *sorted(min(c, len(ids)) for c in cuts), len(ids)]
    output = OutputText(byte_tokenizer, stop=stops, track=track)
    shown = [output.push(ids[a:b])[0] for a, b in itertools.pairwise(marks)]
    assert "".join(shown) + output.finish() == naive(text, stops)[0]
