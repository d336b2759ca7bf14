"""Any split of a sequence of ids yields the text of the whole, and no incomplete character."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.text.detokenizer import Detokenizer
from tidemill.text.tokenizer import Tokenizer

ids_and_cuts = st.lists(st.lists(st.integers(min_value=-1, max_value=700), max_size=5), max_size=12)


def streamed(tokenizer: Tokenizer, parts: list[list[int]], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [detokenizer.push(part) for part in parts] + [detokenizer.finish()]


@settings(max_examples=300, deadline=None)
@given(parts=ids_and_cuts, skip=st.booleans())
def test_chunking_does_not_matter(
    byte_tokenizer: Tokenizer, space_tokenizer: Tokenizer, parts: list[list[int]], skip: bool
) -> None:
    for tokenizer in (byte_tokenizer, space_tokenizer):
        whole = [i for part in parts for i in part]
        text = "".join(streamed(tokenizer, parts, skip_special_tokens=skip))
        assert text == tokenizer.decode(whole, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40)))
def test_raw_bytes_decode_as_utf8_does(
    byte_tokenizer: Tokenizer, space_tokenizer: Tokenizer, data: bytes, cuts: list[int]
) -> None:
    for tokenizer in (byte_tokenizer, space_tokenizer):
        byte_ids = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
        ids = [byte_ids[bytes([b])] for b in data]
        marks = [0, *sorted(min(c, len(ids)) for c in cuts), len(ids)]
        parts = [ids[a:b] for a, b in itertools.pairwise(marks)]
        expected = data.decode(errors="replace")
        assert "".join(streamed(tokenizer, parts, at_start=False)) == expected


def test_incomplete_characters_are_held_back(byte_tokenizer: Tokenizer) -> None:
    llama = "🦙".encode()
    ids = {byte_tokenizer.token_bytes(i): i for i in reversed(range(byte_tokenizer.vocab_size))}
    detokenizer = Detokenizer(byte_tokenizer)
    shown = [detokenizer.push([ids[bytes([b])]]) for b in llama]
    assert shown == ["", "", "", "🦙"]
    assert detokenizer.push([ids[llama[:1]]]) == ""
    assert detokenizer.held_bytes == 1
    assert detokenizer.push([ids[b"a"]]) == "\ufffda"
    assert detokenizer.push([ids[llama[:1]]]) + detokenizer.finish() == "\ufffd"


def test_leading_space_goes_only_at_the_start(space_tokenizer: Tokenizer) -> None:
    ids = space_tokenizer.encode("hello world", add_special=False)
    assert space_tokenizer.token_bytes(ids[0]).startswith(b" ")
    assert "".join(streamed(space_tokenizer, [ids])) == "hello world"
    assert "".join(streamed(space_tokenizer, [ids], at_start=False)) == " hello world"
    # A prompt's text and its continuation's join to the text of the whole.
    for cut in range(1, len(ids)):
        head = space_tokenizer.decode(ids[:cut])
        tail = "".join(streamed(space_tokenizer, [ids[cut:]], at_start=False))
        assert head + tail == "hello world"


def test_special_tokens_before_the_text_keep_the_strip(space_tokenizer: Tokenizer) -> None:
    bos = space_tokenizer.special_id("bos_token")
    ids = space_tokenizer.encode("hello", add_special=False)
    assert bos is not None
    assert "".join(streamed(space_tokenizer, [[bos], ids])) == "hello"
    shown = streamed(space_tokenizer, [[bos], ids], skip_special_tokens=False)
    assert "".join(shown) == "<s> hello"


def test_special_tokens_in_a_row_have_no_space_between_them_where_that_is_asked() -> None:
    library = Library(
        models.WordLevel({"<s>": 0, "</s>": 1, "tide": 2, "mill": 3}, unk_token="<s>")
    )
    library.add_special_tokens(["<s>", "</s>"])
    library.decoder = decoders.WordPiece(prefix="##")
    tokenizer = Tokenizer(TokenizerData(tokenizer_json=library.to_str().encode()))
    ids = [2, 0, 1, 0, 3]
    for unspaced, text in ((None, "tide <s> </s> <s> mill"),
                           (tokenizer.unspaced_specials(), "tide <s></s><s> mill")):  # fmt: skip
        whole = Detokenizer(tokenizer, skip_special_tokens=False, unspaced=unspaced)
        parts = Detokenizer(tokenizer, skip_special_tokens=False, unspaced=unspaced)
        assert whole.push(ids) == text == "".join(parts.push((i,)) for i in ids)
