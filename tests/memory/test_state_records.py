"""Names of recurrent states in tiers: each part has its own, and none is a block's."""

from __future__ import annotations

from tidemill.memory.prefix import block_key
from tidemill.memory.state_records import part_of, state_names


def test_a_name_depends_on_all_that_its_block_does() -> None:
    key = block_key(b"r" * 16, [1, 2, 3, 4])
    others = [
        key,
        block_key(b"s" * 16, [1, 2, 3, 4]),  # another past, tenant or adapter
        block_key(b"r" * 16, [1, 2, 3, 5]),
        block_key(b"r" * 16, [1, 2, 3, 4], ((0, b"an image's digest"),)),
    ]
    names = [name for other in others for name in state_names(other, 5)]
    assert len({name.digest for name in names} | {other.digest for other in others}) == 24
    assert [part_of(name) for name in names] == [*range(5)] * 4
    assert [part_of(other) for other in others] == [-1] * 4
    assert {name.parent for name in state_names(key, 5)} == {key.digest}
