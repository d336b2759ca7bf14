"""Media (images, soft prompts) in block keys: the prefix before them is shared, the rest is not."""

from __future__ import annotations

from functools import partial

import pytest
from helpers.drive import Machine, request

from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import BlockKey, Media, block_key, media_within, root_digest
from tidemill.sched import scheduler
from tidemill.sched.sequence import RequestState, Sequence

SIZE = 8
ROOT = root_digest(salt="a")
PROMPT = list(range(100, 100 + 4 * SIZE))
CAT, DOG = b"cat", b"dog"


def sequence(tokens: list[int], media: Media = ()) -> Sequence:
    """Of a request whose media replace tokens from the given positions on."""
    owner = RequestState(
        client=0, request=request("r", tokens), root=ROOT, received=0.0, media=media
    )
    return Sequence(
        seq_id=0,
        owner=owner,
        choice=0,
        order=(0, 0.0, 0, 0),
        tokens=tokens,
        prompt_len=len(tokens),
        max_len=200,
        stop_ids=frozenset(),
        banned=(),
    )


def keys_of(tokens: list[int], media: Media = ()) -> list[BlockKey]:
    return sequence(tokens, media).keys_up_to(len(tokens) // SIZE, SIZE)


def publish(memory: KVMemory, keys: list[BlockKey]) -> None:
    """Blocks under these keys, computed and free again."""
    lease = memory.lease()
    lease.grow(len(keys) * SIZE)
    for i, key in enumerate(keys):
        lease.publish(i, key)
    lease.close()


@pytest.mark.parametrize(
    ("mine", "theirs", "blocks"),
    [
        ((), (), 4),
        (((11, CAT),), ((11, CAT),), 4),
        (((11, CAT),), ((11, DOG),), 1),
        (((11, CAT),), ((12, CAT),), 1),
        (((11, CAT),), (), 1),
        ((), ((11, CAT),), 1),
        (((0, CAT),), ((0, DOG),), 0),
        (((7, CAT),), ((7, DOG),), 0),
        (((8, CAT),), ((8, DOG),), 1),
        (((3, CAT), (20, CAT)), ((3, CAT), (20, DOG)), 2),
        (((3, CAT), (20, DOG)), ((3, DOG), (20, DOG)), 0),
    ],
)
def test_blocks_before_the_first_other_medium_are_shared(
    mine: Media, theirs: Media, blocks: int
) -> None:
    memory = KVMemory((16,), SIZE)
    publish(memory, keys_of(PROMPT, theirs))
    assert len(memory.find(keys_of(PROMPT, mine))) == blocks


def test_a_block_is_shared_in_part_up_to_where_a_medium_differs() -> None:
    memory = KVMemory((16,), SIZE)
    tokens = PROMPT[:SIZE]
    publish(memory, [block_key(ROOT, tokens, ((5, CAT),))])

    def shared(media: Media, tokens: list[int] = tokens) -> int:
        found = memory.partial_match(ROOT, tokens, media)
        return found.tokens if found else 0

    assert shared(((5, CAT),)) == 8
    assert shared(((5, DOG),)) == shared(()) == 5
    assert shared(((3, DOG), (5, CAT))) == 3
    assert shared(((6, CAT),)) == 5
    assert shared(((0, DOG), (5, CAT))) == 0
    assert shared(((5, CAT),), [*tokens[:4], 1, 2, 3, 4]) == 4
    assert shared((), tokens[:3]) == 3


def test_what_comes_after_the_same_medium_is_compared_by_its_tokens() -> None:
    keys, other = keys_of(PROMPT, ((2, CAT),)), keys_of([*PROMPT[:-1], 1], ((2, CAT),))
    assert keys[:3] == other[:3] and keys[3] != other[3]


def test_without_media_a_key_is_that_of_its_tokens() -> None:
    [first, second, *_] = keys_of(PROMPT)
    assert first == block_key(ROOT, PROMPT[:SIZE]) and first.media == ()
    assert second == block_key(first.digest, PROMPT[SIZE : 2 * SIZE])


def test_media_are_placed_within_their_block() -> None:
    media = ((3, CAT), (8, DOG), (15, CAT), (16, DOG))
    assert media_within(media, 8, 16) == ((0, DOG), (7, CAT))
    assert media_within(media, 24, 32) == ()


@pytest.mark.parametrize(
    ("first", "second", "cached"),
    [
        (((11, CAT),), ((11, CAT),), 31),
        (((11, CAT),), ((11, DOG),), 11),
        (((11, CAT),), (), 11),
        (((28, CAT),), ((28, CAT),), 31),
        ((), ((28, CAT),), 28),
    ],
)
def test_a_prompt_is_served_from_the_cache_up_to_where_a_medium_differs(
    first: Media, second: Media, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(block_size=SIZE)
    prompt = [token % machine.vocab for token in PROMPT]
    for name, media in (("first", first), ("second", second)):
        monkeypatch.setattr(scheduler, "RequestState", partial(RequestState, media=media))
        machine.submit(request(name, prompt, 1))
        machine.run()
    assert machine.collected["second", 0].outputs[0].cached_tokens == cached
