"""The arithmetic of audit chains: what a row's hash covers, and what seals cover.

A row's hash covers the row and the hash before it, so that no row can be changed, taken out or
moved without changing every later hash. Of the detail it covers a digest: an erased detail leaves
the chain as it was.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

START = bytes(32)
"""The hash before the first row."""

_ROW = b"tidemill audit row 1\0"
_HEAD = b"tidemill audit head 1\0"
_SEAL = b"tidemill audit seal 1\0"
_NUMBERS = struct.Struct(">qq")

_encode = msgspec.json.Encoder(order="sorted").encode


class Row(NamedTuple):
    """A row before it has a place.

    Attributes:
        at: milliseconds since the epoch.
        kind: ``request``, or an act.
        actor, subject: who did what to whom.
        detail: JSON.
    """

    at: int
    kind: str
    actor: str
    subject: str
    detail: str


class Head(NamedTuple):
    """The end of a chain, and where what is kept of it begins.

    Attributes:
        seq, hash: of the last row.
        pruned_seq, pruned_hash: of the last row that retention removed.
    """

    seq: int = 0
    hash: bytes = START
    pruned_seq: int = 0
    pruned_hash: bytes = START


def detail_text(detail: Mapping[str, Any]) -> str:
    """A row's detail as it is stored."""
    return _encode(detail).decode()


def digest_of(detail: str) -> bytes:
    """What stands for a detail in a row's hash."""
    return sha256(detail.encode()).digest()


def hash_of(
    before: bytes, seq: int, at: int, kind: str, actor: str, subject: str, digest: bytes
) -> bytes:
    """A row's hash.

    Args:
        before: the hash of the row before it; `START` for the first.
        digest: of its detail.
    """
    texts = f"{kind}\0{actor}\0{subject}\0".encode()
    return sha256(b"".join((_ROW, before, _NUMBERS.pack(seq, at), digest, texts))).digest()


def head_message(chain: str, head: Head) -> bytes:
    """What the seal of a chain's head covers."""
    numbers = _NUMBERS.pack(head.seq, head.pruned_seq)
    return b"".join((_HEAD, chain.encode(), b"\0", numbers, head.hash, head.pruned_hash))


def seal_message(chain: str, seq: int, hash: bytes, at: int) -> bytes:
    """What a seal of a chain at some row covers."""
    return b"".join((_SEAL, chain.encode(), b"\0", _NUMBERS.pack(seq, at), hash))
