"""What engines say to each other about blocks (`transfer.link`).

An opener says what model it is; the other side answers. Then of WATCH the listener tells what it
has, and of FETCH the opener asks for blocks, and gets them one by one in the order asked for.
"""

from __future__ import annotations

import msgspec

from tidemill.contract.moves import Name

MAX_NAMES = 2048
"""Of one `Get`."""


class Open(msgspec.Struct, frozen=True, array_like=True):
    """The opener's model (`record.identity_of`), and the size of its blocks."""

    identity: bytes
    nbytes: int


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """The answer; `refused`: why not, or empty."""

    refused: str = ""


class Announce(msgspec.Struct, frozen=True, array_like=True):
    """Digests of blocks that the listener has since it last told, and of those that it has not any
    more. It also says that it is there.

    Attributes:
        added, removed: digests.
        anew: forget what was told before.
    """

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    anew: bool = False


class Get(msgspec.Struct, frozen=True, array_like=True):
    """Contents wanted, at most `MAX_NAMES`."""

    names: tuple[Name, ...]


class Block(msgspec.Struct, frozen=True, array_like=True):
    """The next of them: its header (`transfer.record`), and behind the message the bytes that this
    says; no header: there is no such block (any more)."""

    header: bytes = b""
