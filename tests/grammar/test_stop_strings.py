"""Stop strings in the bytes of tokens, against a search in the whole text."""

from __future__ import annotations

import random
from typing import cast

import pytest

from tidemill.contract.program import StopStrings
from tidemill.grammar.stop_strings import StopTail
from tidemill.grammar.vocabulary import Vocabulary

PIECES = [b"a", b"b", b"ab", b"ba", b"aab", b"", b"\xc3", b"\xa9", b"<s>"]
SPECIAL = 8


class _Vocabulary:
    def piece(self, token_id: int, *, special: bool) -> bytes:
        return PIECES[token_id] if special or token_id != SPECIAL else b""


def tail(*texts: str, min_tokens: int = 0, special: bool = False) -> StopTail:
    stops = StopStrings(texts, min_tokens, special)
    return StopTail(stops, cast(Vocabulary, _Vocabulary()))


@pytest.mark.parametrize("seed", range(30))
def test_a_stop_ends_at_the_token_that_completes_it(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["".join(rng.choices("abé", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))]
    least = rng.choice((0, 3))
    found, text = tail(*texts, min_tokens=least), b""
    for count in range(1, 60):
        token = rng.randrange(len(PIECES))
        before = text
        text += PIECES[token] if token != SPECIAL else b""
        completed = any(
            text.find(t.encode(), max(0, len(before) - len(t.encode()) + 1)) >= 0 for t in texts
        )
        assert found.fork().add(token) == (completed and count >= least)
        assert found.add(token) == (completed and count >= least)


def test_special_tokens_count_only_where_they_are_shown() -> None:
    assert not tail("<s>").add(SPECIAL)
    assert tail("<s>", special=True).add(SPECIAL)
