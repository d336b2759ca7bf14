"""Prompt lookup: the most frequent continuation of the longest match."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tidemill.base._texts import RepeatIndex
from tidemill.contract.plan import NewSequence
from tidemill.contract.sampling import SamplingParams
from tidemill.worker.speculate.drafter import Proposal, Wanted
from tidemill.worker.speculate.lookup import LookupDrafter


def longest_match(text: list[int]) -> int:
    """By trying all: tokens at the end that occurred before."""
    for length in range(len(text) - 1, 0, -1):
        if any(text[i : i + length] == text[-length:] for i in range(len(text) - length)):
            return length
    return 0


def continuation(text: list[int]) -> int:
    """By counting: what followed the longest match most often, of equals the latest."""
    length = longest_match(text)
    found: dict[int, tuple[int, int]] = {}
    for i in range(len(text) - length):
        if text[i : i + length] == text[-length:]:
            count, _ = found.get(text[i + length], (0, 0))
            found[text[i + length]] = count + 1, i
    return max(found, key=lambda token: found[token])


@pytest.mark.parametrize("alphabet", [1, 2, 3, 7, 30])
def test_matches_and_continuations_by_trying_all(alphabet: int) -> None:
    rng = random.Random(alphabet)
    for _ in range(25):
        text = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 50))]
        index, at = RepeatIndex(1000), 0
        while at < len(text):
            end = min(len(text), at + rng.randrange(1, 6))
            index.extend(np.array(text[at:end], np.int32))
            at, known = end, text[:end]
            assert index.match == longest_match(known)
            proposed = index.propose(4)
            assert bool(proposed) == bool(index.match)
            assert not proposed or proposed[0] == continuation(known)


def test_a_repeated_text_is_proposed_to_its_end_and_again() -> None:
    index = RepeatIndex(1000)
    index.extend(np.array([1, 2, 3, 4, 5, 6, 1, 2], np.int32))
    assert index.match == 2 and index.propose(4) == [3, 4, 5, 6]
    assert index.propose(9) == [3, 4, 5, 6, 1, 2, 3, 4, 5]


def test_nothing_is_found_across_a_separator() -> None:
    index = RepeatIndex(1000)
    index.extend(np.array([1, 2], np.int32))
    index.separate()
    index.extend(np.array([3, 1, 2], np.int32))
    assert index.match == 2 and index.propose(3) == []
    index.separate()
    assert index.match == 0


def test_memory_and_text_are_bounded() -> None:
    index = RepeatIndex(1024)
    rng = np.random.default_rng(1)
    largest = 0
    for _ in range(40):
        index.extend(rng.integers(0, 5000, 100).astype(np.int32))
        largest = max(largest, index.nbytes)
        assert 512 <= len(index) <= 1024 or len(index) < 1024
    assert largest < 1024 * 400
    tail = rng.integers(0, 5000, 300).astype(np.int32)
    index.extend(tail)
    index.extend(tail[:20])
    assert index.match == 20 and index.propose(5) == tail[20:25].tolist()
    index.extend(rng.integers(0, 5000, 5000).astype(np.int32))
    assert len(index) == 1024


def new(prompt: list[int], prediction: tuple[int, ...] = ()) -> NewSequence:
    return NewSequence(
        seq_id=4,
        request_id="r",
        choice=0,
        token_ids=tuple(prompt),
        prompt_len=len(prompt),
        sampling=SamplingParams(seed=1),
        drafters=("lookup",),
        prediction=prediction,
    )


def propose(drafter: LookupDrafter, tokens: list[int], most: int = 16, least: int = 0) -> Proposal:
    (found,) = drafter.propose([Wanted(4, np.array(tokens, np.int32), most, least)])
    return found


def test_drafts_grow_with_the_match() -> None:
    drafter, text = LookupDrafter(), list(range(40))
    drafter.add(new(text), 0)
    drafter.read(4, np.array(text, np.int32))
    assert propose(drafter, text) == Proposal((), True), "one more token makes a match of one"
    assert propose(drafter, [*text, 5]) == Proposal((), False)
    assert propose(drafter, [*text, 5, 6]) == Proposal((7, 8), confidence=(1, 1))
    assert propose(drafter, [*text, 5, 6, 7]) == Proposal((8, 9, 10), confidence=(1, 2, 2))
    assert propose(drafter, [*text, 5, 6, 7, 8], 2) == Proposal((9, 10), confidence=(2, 2))
    assert propose(drafter, [*text, 5, 6, 7, 8], 2, 2) == Proposal((9, 10), confidence=(2, 2))
    drafter.forget(4)
    drafter.forget(4)


def test_less_certain_drafts_than_asked_for_are_not_proposed() -> None:
    text = list(range(40))
    for match in range(8):
        for least in range(4):
            drafter = LookupDrafter()
            drafter.add(new(text), 0)
            found = propose(drafter, [*text, *range(5, 5 + match)], least=least)
            shortest = max(2, 2**least)
            assert bool(found.token_ids) == (match >= shortest)
            assert found.quiet == (match + 1 < shortest)


def test_the_prediction_is_followed_from_its_beginning_and_found_again() -> None:
    prompt, expected = [1, 2, 3], tuple(range(50, 80))
    drafter = LookupDrafter()
    drafter.add(new(prompt, expected), 0)
    assert propose(drafter, prompt, 4) == Proposal(expected[:4], confidence=(7,) * 4)
    assert propose(drafter, [*prompt, 50, 51], 4) == Proposal(expected[2:6], confidence=(7,) * 4)
    assert propose(drafter, [*prompt, 50, 51, 9], 4).token_ids == ()
    assert propose(drafter, [*prompt, 50, 51, 9, 60, 61, 62], 4) == Proposal(
        (63, 64, 65), confidence=(1, 2, 2)
    )


def _new(seq_id: int, prompt: list[int], owner: str) -> NewSequence:
    return NewSequence(
        seq_id=seq_id, request_id="r", choice=0, token_ids=tuple(prompt), prompt_len=len(prompt),
        sampling=SamplingParams(), drafters=("lookup",), answers_of=owner,
    )  # fmt: skip


def test_recent_answers_of_the_owner_and_of_nobody_else() -> None:
    drafter = LookupDrafter(answers=40)

    def drafts(seq_id: int, owner: str, tokens: list[int]) -> tuple[int, ...]:
        known = np.array(tokens, np.int32)
        drafter.add(_new(seq_id, tokens[:3], owner), 0)
        drafter.read(seq_id, known[:3])
        return drafter.propose([Wanted(seq_id, known, 8)])[0].token_ids

    answer = list(range(100, 130))
    assert drafts(1, "a", [1, 2, 3, *answer]) == ()
    assert drafts(2, "a", [4, 5, 6, 100, 101, 102]) == (), "its answer has not ended"
    drafter.forget(1)
    drafter.forget(2)
    assert drafts(3, "a", [7, 8, 9, 110, 111, 112]) == (113, 114, 115)
    assert drafts(4, "b", [7, 8, 9, 110, 111, 112]) == ()
    assert drafts(5, "", [7, 8, 9, 110, 111, 112]) == ()
    assert drafts(6, "a", [1, 2, 3, 50, 1, 2, 3]) == (50, 1, 2), "prompts are no answers"
    for seq_id in (3, 4, 5, 6):
        drafter.forget(seq_id)
    assert drafts(7, "a", [7, 8, 9, 2, 3]) == (), "of prompts nothing is kept"
    assert drafts(8, "a", [7, 8, 9, 127, 128]) == (129,)
    for seq_id in range(20, 30):  # no more than 40 tokens are kept
        drafts(seq_id, "a", [1, 2, 3, *range(1000 + seq_id, 1009 + seq_id)])
        drafter.forget(seq_id)
    assert drafts(9, "a", [7, 8, 9, 127, 128]) == ()
