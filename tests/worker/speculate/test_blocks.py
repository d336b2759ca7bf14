"""Blocks of a drafter's own cache: found by content, given back once, limited."""

from __future__ import annotations

import random

import numpy as np

from tidemill.worker.speculate.blocks import DraftBlocks, block_keys


def keys(*tokens: int) -> list[bytes]:
    return block_keys(np.array(tokens, np.int32), 2)


def test_a_key_stands_for_everything_before() -> None:
    assert len(keys(1)) == 0 and len(keys(1, 2, 3)) == 1
    assert keys(1, 2, 3, 4)[0] == keys(1, 2, 5, 6)[0]
    assert keys(1, 2, 3, 4)[1] != keys(7, 2, 3, 4)[1]
    longer = np.array([1, 2, 3, 4, 5, 6], np.int32)
    assert block_keys(longer, 2, keys(1, 2, 3, 4)) == keys(1, 2, 3, 4, 5, 6)


def test_published_blocks_are_found_until_they_are_reused() -> None:
    blocks = DraftBlocks(3)
    first, second = keys(1, 2, 3, 4)
    mine = blocks.take(2)
    assert blocks.take(2) == [] and blocks.num_free == 1
    assert blocks.find([first]) == []
    blocks.publish(mine[0], first)
    blocks.publish(mine[1], second)
    assert blocks.find([first, second, b"other"]) == mine
    blocks.release(mine)
    assert blocks.num_free == 1, "the other still uses them"
    blocks.release(mine)
    assert blocks.num_free == 3
    assert blocks.find([first, second]) == mine
    blocks.release(mine)
    blocks.take(2)  # the block that nobody can find, then the end of the chain
    assert blocks.find([first, second]) == mine[:1]


def test_what_is_beyond_a_limit_is_lost() -> None:
    blocks = DraftBlocks(4)
    mine = blocks.take(4)
    chain = keys(1, 2, 3, 4, 5, 6, 7, 8)
    for block, key in zip(mine, chain, strict=True):
        blocks.publish(block, key)
    blocks.release(mine)
    blocks.limit(2)
    assert blocks.num_free == 2 and blocks.find(chain) == [b for b in mine if b < 2]
    blocks.forget()
    assert blocks.find(chain) == []
    blocks.limit(4)
    assert blocks.num_free == 2, "two are in use"


def test_every_block_comes_back() -> None:
    rng = random.Random(1)
    blocks, held = DraftBlocks(20), []
    for _ in range(2000):
        if rng.random() < 0.5 and held:
            blocks.release(held.pop(rng.randrange(len(held))))
            continue
        text = np.array([rng.randrange(2) for _ in range(8)], np.int32)
        chain = block_keys(text, 2)
        found = blocks.find(chain)
        more = blocks.take(4 - len(found))
        if found and not more and len(found) < 4:
            blocks.release(found)
            continue
        for block, key in zip(more, chain[len(found) :], strict=False):
            blocks.publish(block, key)
        held.append(found + more)
    for one in held:
        blocks.release(one)
    assert blocks.num_free == 20
