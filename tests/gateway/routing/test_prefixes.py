"""What is known of targets' caches."""

from __future__ import annotations

from tidemill.gateway.routing.prefixes import BLOCK_BYTES, Prefixes, keys_of

BLOCK = BLOCK_BYTES


def test_longest_common_beginning() -> None:
    known = Prefixes()
    system = b"s" * (3 * BLOCK)
    known.note("a", keys_of("m", system + b"x" * BLOCK))
    assert known.matched("a", keys_of("m", system + b"x" * BLOCK)) == 4
    assert known.matched("a", keys_of("m", system + b"y" * BLOCK)) == 3
    assert known.matched("a", keys_of("m", b"t" + system)) == 0
    assert known.matched("a", keys_of("other", system)) == 0
    assert known.matched("b", keys_of("m", system)) == 0


def test_the_end_of_the_oldest_prompt_is_forgotten_first() -> None:
    known = Prefixes(blocks=4)
    first = keys_of("m", b"a" * (3 * BLOCK))
    known.note("t", first)
    known.note("t", keys_of("m", b"b" * (2 * BLOCK)))
    assert known.matched("t", first) == 2
    known.resize("t", 3)
    assert known.matched("t", first) == 1
    known.forget("t")
    assert known.matched("t", first) == 0


def test_a_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    known = Prefixes(blocks=2)
    keys = keys_of("m", bytes(10 * BLOCK))
    known.note("t", keys)
    assert known.matched("t", keys) == 2


def test_short_prompts_have_no_keys() -> None:
    assert keys_of("m", b"short") == []
    assert Prefixes().matched("t", []) == 0
