"""Prompts with a gap, by the marks of the vocabulary."""

from __future__ import annotations

from helpers.filling import FILE, MIDDLE, PAD, PREFIX, SUFFIX, filling_tokenizer
from helpers.tiny_text import tokenizer_data

from tidemill.text.fill_middle import fill_marks
from tidemill.text.tokenizer import Tokenizer

BOS = 256


def test_the_prefix_comes_first_where_there_is_a_middle_mark() -> None:
    marks = fill_marks(filling_tokenizer())
    assert marks is not None and marks.file == FILE
    assert set(marks.ends) == {PAD, FILE}
    assert marks.prompt([1, 2], [3]) == (BOS, PREFIX, 1, 2, SUFFIX, 3, MIDDLE)
    assert marks.prompt([1], [3], before=[9]) == (BOS, 9, PREFIX, 1, SUFFIX, 3, MIDDLE)


def test_the_suffix_comes_first_where_there_is_none() -> None:
    marks = fill_marks(filling_tokenizer(["[PREFIX]", "[SUFFIX]"]))
    assert marks is not None and marks.file is None
    assert marks.prompt([1, 2], [3]) == (BOS, 263, 3, 262, 1, 2)


def test_a_vocabulary_without_all_marks_of_a_row_has_none() -> None:
    assert fill_marks(Tokenizer(tokenizer_data())) is None
    assert fill_marks(filling_tokenizer(["<|fim_prefix|>", "<|fim_suffix|>"])) is None
