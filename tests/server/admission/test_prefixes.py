"""What prompts under way share."""

from __future__ import annotations

import random
from collections import Counter

from tidemill.server.admission.prefixes import PIECE_TOKENS, Held, Prefixes


def test_whole_pieces_from_the_beginning_are_shared() -> None:
    prefixes = Prefixes()
    system = tuple(range(3 * PIECE_TOKENS + 10))
    (first,) = prefixes.look_up("", [system])
    assert first.shared_tokens == 0
    prefixes.hold(first)
    longer, other, moved, salted = (
        prefixes.look_up(salt, [prompt])[0].shared_tokens
        for salt, prompt in (
            ("", (*system, 1, 2)),
            ("", (*system[:PIECE_TOKENS], 7, *system[PIECE_TOKENS:])),
            ("", (7, *system)),
            ("other", system),
        )
    )
    assert (longer, other, moved, salted) == (3 * PIECE_TOKENS, PIECE_TOKENS, 0, 0)


def test_prompts_of_one_request_share_with_each_other() -> None:
    prompt = tuple(range(2 * PIECE_TOKENS))
    held = Prefixes().look_up("", [prompt, prompt[:PIECE_TOKENS], (9,) * 5])
    assert [h.shared for h in held] == [0, 1, 0]


def test_every_piece_is_counted_once_while_anybody_has_it() -> None:
    rng = random.Random(3)
    prefixes, under_way = Prefixes(), list[tuple[tuple[int, ...], Held]]()
    for _ in range(4000):
        if under_way and rng.random() < 0.5:
            prefixes.release(under_way.pop(rng.randrange(len(under_way)))[1])
        else:
            stem = rng.randrange(3)
            prompt = tuple(
                stem if i < rng.choice((1, 2)) * PIECE_TOKENS else rng.randrange(2)
                for i in range(rng.randrange(4 * PIECE_TOKENS))
            )
            (held,) = prefixes.look_up("", [prompt])
            prefixes.hold(held)
            under_way.append((prompt, held))
        owned = sum((len(h.pieces) - h.shared) * PIECE_TOKENS for _, h in under_way)
        distinct = Counter(
            p[: i + PIECE_TOKENS]
            for p, h in under_way
            for i in range(0, len(h.pieces) * PIECE_TOKENS, PIECE_TOKENS)
        )
        assert owned + prefixes.orphaned == len(distinct) * PIECE_TOKENS
    for _, held in under_way:
        prefixes.release(held)
    assert prefixes.orphaned == 0 and not prefixes._pieces
