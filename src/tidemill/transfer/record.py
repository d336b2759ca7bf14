"""The record of a block outside of a cache: a header that says what it is, then its bytes.

One form for whatever holds blocks by their content: a file of a store, and a message between
engines. Who reads one knows what it must be, and compares the whole header with that: another
model, type, layout, build, tenant or text is another header, whatever the record's name says. The
bytes are believed if their checksum is the header's.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from tidemill.contract.moves import Name

LAYOUT_VERSION = 1
"""Of records, and of how a backend's blocks lie in them."""

_MAGIC = b"TMKVBLK\0"
_FIXED = struct.Struct("<8sHHIQQ32s16s16s")
_MEDIUM = struct.Struct("<II")
_CHECKSUM_AT = 24
_CHECKSUM = struct.Struct("<Q")
_ALIGN = 512


class Damaged(Exception):
    """A record that must not be used; the message is the reason, without what it holds."""


def identity_of(parts: Sequence[object]) -> bytes:
    """32 bytes for everything that blocks' bytes depend on beside their names: weights, how they
    compute, the type and the size of blocks."""
    hasher = hashlib.sha256(f"tidemill kv {LAYOUT_VERSION}".encode())
    for part in parts:
        text = str(part).encode()
        hasher.update(len(text).to_bytes(8, "little"))
        hasher.update(text)
    return hasher.digest()


def header(identity: bytes, name: Name, nbytes: int, checksum: int) -> bytes:
    """The header of a record.

    Args:
        identity: of what computed the block (`identity_of`).
        name: the block's content.
        nbytes: bytes of the block, which follow.
        checksum: of these, 64 bits.
    """
    digest, parent, tokens, media = name
    count, size = len(media), len(tokens)
    fixed = _FIXED.pack(
        *(_MAGIC, LAYOUT_VERSION, count, size, nbytes, checksum, identity, digest, parent)
    )
    parts = [fixed, tokens]
    for position, medium in media:
        parts += (_MEDIUM.pack(position, len(medium)), medium)
    whole = b"".join(parts)
    return whole.ljust(-(-len(whole) // _ALIGN) * _ALIGN, b"\0")


def checksum_in(found: bytes | bytearray, identity: bytes, name: Name, nbytes: int) -> int:
    """The checksum that a header has, which must otherwise be the one expected.

    Raises:
        Damaged: it is not.
    """
    if len(found) < _FIXED.size:
        raise Damaged("its header is cut off")
    (checksum,) = _CHECKSUM.unpack_from(found, _CHECKSUM_AT)
    if bytes(found) != header(identity, name, nbytes, checksum):
        raise Damaged("it is of another model or text, or its header is damaged")
    return int(checksum)
