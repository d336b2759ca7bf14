"""What engines say to each other about blocks (`transfer.link`).

An opener says what model it is; the other side answers. Then of WATCH the listener tells what it
has and what it has to do, and of FETCH the opener asks for blocks, and gets them one by one in the
order asked for. With a prompt (`Get.prompt`) it also gets those that are computed for it meanwhile.
"""

from __future__ import annotations

import msgspec

from tidemill.contract.moves import MOST_NAMES, Name, PeerLoad, PrefillPrompt

MAX_NAMES = MOST_NAMES
"""Of one `Get`."""


class Open(msgspec.Struct, frozen=True, array_like=True):
    """The opener's model (`record.identity_of`), and the size of its blocks."""

    identity: bytes
    nbytes: int


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """The answer.

    Attributes:
        refused: why not, or empty.
        local: name of a socket where processes of the same machine get blocks in shared memory;
            empty: there is none.
        shares: a file follows (`Link.send_file`), in which blocks lie (`transfer.arena`).
    """

    refused: str = ""
    local: str = ""
    shares: bool = False


class Announce(msgspec.Struct, frozen=True, array_like=True):
    """Digests of blocks that the listener has since it last told, and of those that it has not any
    more. It also says that it is there.

    Attributes:
        added, removed: digests.
        anew: forget what was told before.
        load: None: it computes no prompts for others.
    """

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    anew: bool = False
    load: PeerLoad | None = None


class Get(msgspec.Struct, frozen=True, array_like=True):
    """Contents wanted, at most `MAX_NAMES` with those of `prompt`.

    Attributes:
        names: in the order of the sequence.
        prompt: what the engine does not have of it, it computes; None: it has them.
        read: nothing is asked for: the block in this slot of the shared memory is not read any
            more. Blocks of one request may be done with before those of an earlier one; -1: none.
    """

    names: tuple[Name, ...]
    prompt: PrefillPrompt | None = None
    read: int = -1


class Block(msgspec.Struct, frozen=True, array_like=True):
    """The next of them: its header (`transfer.record`), and behind the message the bytes that this
    says; no header: there is no such block (any more).

    Attributes:
        header: see above.
        later: without a header: it is still being computed; this says that the engine is there.
        waited: it was not there when the block before was sent.
        slot: where its bytes are in the shared memory; -1: they follow.
    """

    header: bytes = b""
    later: bool = False
    waited: bool = False
    slot: int = -1
