"""What followers of a cache are told."""

from __future__ import annotations

from tidemill.memory.changes import LOOKED_AT, MAX_EVENTS, CacheChanges
from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import BlockKey, block_key

SIZE = 4


def _keys(*tokens: int) -> list[BlockKey]:
    keys: list[BlockKey] = []
    for start in range(0, len(tokens), SIZE):
        parent = keys[-1].digest if keys else b"r" * 16
        keys.append(block_key(parent, tokens[start : start + SIZE]))
    return keys


def _fill(memory: KVMemory, keys: list[BlockKey]) -> None:
    found = memory.find(keys)
    lease = memory.lease(found)
    lease.grow(len(keys) * SIZE)
    for index in range(len(found), len(keys)):
        lease.publish(index, keys[index])
    lease.close()


def _digests(data: bytes, each: int = 32) -> list[bytes]:
    return [data[at : at + 16] for at in range(0, len(data), each)]


def test_news_of_a_cache_say_what_it_finds() -> None:
    """However prompts come and evict each other, who follows knows what is there."""
    memory = KVMemory((6,), SIZE)
    _fill(memory, _keys(*range(8)))
    first = memory.follow().since("")
    assert first.anew and _digests(first.added) == [key.digest for key in _keys(*range(8))]
    assert [first.added[16:32]] == [b"r" * 16]  # the first block's parent is the root
    known = dict.fromkeys(_digests(first.added))
    cursor = first.cursor
    for turn in range(20):
        _fill(memory, _keys(*range(turn % 3, turn % 3 + 12)))
        news = memory.follow().since(cursor)
        cursor = news.cursor
        assert not news.anew
        known |= dict.fromkeys(_digests(news.added))
        for digest in _digests(news.removed, 16):
            del known[digest]
        index = memory.indices[0]
        assert set(known) == {index.key_of(block).digest for block in index.blocks()}
    quiet = memory.follow().since(cursor)
    assert (quiet.cursor, quiet.added, quiet.removed) == (cursor, b"", b"")


def test_a_prompt_is_told_by_its_last_block() -> None:
    changes, keys = CacheChanges((), lambda digest: False), _keys(*range(8))
    cursor = changes.since("").cursor
    for key in keys:
        changes.published(key)
    changes.prompt("r", keys, 9)
    changes.prompt("short", [], 3)
    told, short = changes.since(cursor).prompts
    assert (told.request, told.leaf, told.blocks, told.tokens) == ("r", keys[1].digest, 2, 9)
    assert (short.leaf, short.blocks) == (b"", 0)


def test_a_cursor_that_is_another_cache_s_or_too_old_gets_everything() -> None:
    [key] = _keys(*range(4))
    changes, other = (CacheChanges([key], lambda digest: False) for _ in range(2))
    assert other.since(changes.since("").cursor).anew
    old = changes.since("").cursor
    assert not changes.since(old).anew
    for _ in range(MAX_EVENTS // 2 + 1):
        changes.evicted(key.digest)
        changes.published(key)
    assert changes.since(old).anew
    for cursor in ("nonsense", "-", old + "0", old.partition("-")[0] + "--1"):
        assert changes.since(cursor).anew


def test_what_a_tier_below_keeps_is_there_until_it_is_lost_there() -> None:
    below: set[bytes] = set()
    changes, keys = CacheChanges((), below.__contains__), _keys(*range(8))
    for key in keys:
        changes.published(key)
    below.add(keys[0].digest)
    cursor = changes.since("").cursor
    for key in keys:
        changes.evicted(key.digest)
    news = changes.since(cursor)
    assert news.removed == keys[1].digest
    assert changes.since(news.cursor).removed == b""
    below.clear()
    assert changes.since(news.cursor).removed == keys[0].digest


def test_of_many_blocks_below_a_few_are_looked_at_each_time() -> None:
    below: set[bytes] = set()
    changes, keys = CacheChanges((), below.__contains__), _keys(*range(4 * (LOOKED_AT + 10)))
    for key in keys:
        changes.published(key)
        below.add(key.digest)
        changes.evicted(key.digest)
    below.clear()
    first = changes.since("")
    assert len(_digests(first.added)) == 10
    assert len(_digests(changes.since(first.cursor).removed, 16)) == 10
