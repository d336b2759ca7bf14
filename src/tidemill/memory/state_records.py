"""The names of recurrent states outside of the device: records, each as large as a block's.

A state is as large as the blocks of hundreds of tokens. It is cut into parts, so that it moves, and
is held, like so many blocks. A part's name has the block at whose end the state stands as parent,
that block's tokens and media again, and in front of these a mark with the part's number. So it
depends on all that the block's name does, and cannot be a block's.
"""

from __future__ import annotations

from functools import lru_cache

from tidemill.memory.prefix import BlockKey, packed_key

_MARK = b"recurrent state"


@lru_cache(maxsize=64)
def state_names(key: BlockKey, parts: int) -> tuple[BlockKey, ...]:
    """The names of all parts of the state at the end of a block."""
    return tuple(
        packed_key(key.digest, key.tokens, ((part, _MARK), *key.media)) for part in range(parts)
    )


def part_of(name: BlockKey) -> int:
    """Which part of a state this names; -1: it is a block's name."""
    return name.media[0][0] if name.media and name.media[0][1] == _MARK else -1
