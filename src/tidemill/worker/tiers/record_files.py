"""How a record lies in a file of the disk tier: its header, then its bytes, as they are.

`tiers.sealed` is the other way, for folders that are encrypted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from tidemill.backends.base import UInt8
from tidemill.transfer.record import Damaged


class RecordFiles(Protocol):
    """One way in which records lie in files."""

    def identity(self, identity: bytes) -> bytes:
        """What stands for the model's identity, 32 bytes."""

    def name_of(self, digest: bytes) -> bytes:
        """What a file is named after; see `digest_of`."""

    def digest_of(self, name: bytes) -> bytes:
        """The digest of the block that a file of this name has."""

    def size(self, head: int, nbytes: int) -> int:
        """Bytes of a file with so many bytes of a header and of a block."""

    def write(self, file: int, head: bytes, data: UInt8) -> None:
        """Write a record into a new file. Raises OSError."""

    def read(self, file: int, head: bytearray, out: UInt8) -> None:
        """Read a whole record. Raises Damaged, OSError."""


class PlainFiles:
    """See the module docstring."""

    def identity(self, identity: bytes) -> bytes:
        """See `RecordFiles`."""
        return identity

    def name_of(self, digest: bytes) -> bytes:
        """See `RecordFiles`."""
        return digest

    def digest_of(self, name: bytes) -> bytes:
        """See `RecordFiles`."""
        return name

    def size(self, head: int, nbytes: int) -> int:
        """See `RecordFiles`."""
        return head + nbytes

    def write(self, file: int, head: bytes, data: UInt8) -> None:
        """See `RecordFiles`."""
        write_all(file, [memoryview(head), data.data])

    def read(self, file: int, head: bytearray, out: UInt8) -> None:
        """See `RecordFiles`."""
        read_all(file, [memoryview(head), out.data])


def write_all(file: int, parts: Sequence[memoryview]) -> None:
    """Write all bytes of all parts."""
    rest = [*parts]
    while rest:
        rest = _after(rest, os.writev(file, rest))


def read_all(file: int, parts: Sequence[memoryview]) -> None:
    """Fill all parts. Raises Damaged where the file ends before."""
    rest = [*parts]
    while rest:
        count = os.readv(file, rest)
        if not count:
            raise Damaged("it ends too early")
        rest = _after(rest, count)


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the parts after their first `count` bytes."""
    while parts and count >= len(parts[0]):
        count -= len(parts[0])
        parts = parts[1:]
    return [parts[0][count:], *parts[1:]] if parts else []
