"""Encrypted records of the disk tier, by AES-256-GCM. Needs the package `cryptography`.

A file begins with a random salt, from which and the folder's key its own key is derived. The header
and the block's bytes follow in pieces, each with a tag; a piece's nonce is its number, so that none
can be left out, repeated or moved. Names are encrypted as well: a digest says whether somebody has
sent a text that one knows. The key is part of the identity: an engine with another key has another
folder, finds nothing in this one and damages nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator

import numpy as np

from tidemill.backends.base import UInt8
from tidemill.base.errors import config_error
from tidemill.transfer.record import Damaged
from tidemill.worker.tiers.record_files import read_all, write_all

KEY_VARIABLE = "TIDEMILL_KV_DISK_KEY"
LEAST_KEY = 16
PIECE_BYTES = 2**18
"""The GIL is held for one."""

_SALT = _TAG = 16
_NONCE = 12


def sealed_from_environment() -> SealedFiles | None:
    """By the key in `KEY_VARIABLE`; None where it is not set.

    Raises:
        TidemillError: CONFIG: it is too short, or the package is missing.
    """
    text = os.environ.get(KEY_VARIABLE, "")
    if not text:
        return None
    if len(text) < LEAST_KEY:
        raise config_error(
            "kv_disk",
            f"{KEY_VARIABLE} must have at least {LEAST_KEY} characters, such as what "
            "`openssl rand -hex 32` prints",
        )
    return SealedFiles(text.encode())


class SealedFiles:
    """See the module docstring, and `RecordFiles`.

    Args:
        secret: the folder's key, of any length.

    Raises:
        TidemillError: CONFIG: the package is missing.
    """

    def __init__(self, secret: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise config_error(
                "kv_disk", f"{KEY_VARIABLE} encrypts kv_disk: pip install cryptography"
            ) from None
        self._aead = AESGCM
        self._secret = secret
        self._content = self._derived(b"content")
        # A digest is one block of the cipher, and each is encrypted alone: a permutation of them.
        self._names = Cipher(algorithms.AES(self._derived(b"names")), modes.ECB())

    def _derived(self, what: bytes) -> bytes:
        return hmac.digest(self._secret, b"tidemill kv disk " + what, hashlib.sha256)

    def identity(self, identity: bytes) -> bytes:
        """See `RecordFiles`."""
        return hmac.digest(self._derived(b"identity"), identity, hashlib.sha256)

    def name_of(self, digest: bytes) -> bytes:
        """See `RecordFiles`."""
        return self._names.encryptor().update(digest)

    def digest_of(self, name: bytes) -> bytes:
        """See `RecordFiles`."""
        return self._names.decryptor().update(name)

    def size(self, head: int, nbytes: int) -> int:
        """See `RecordFiles`."""
        return _SALT + head + _TAG + nbytes + -(-nbytes // PIECE_BYTES) * _TAG

    def write(self, file: int, head: bytes, data: UInt8) -> None:
        """See `RecordFiles`."""
        salt = os.urandom(_SALT)
        aead = self._aead(hmac.digest(self._content, salt, hashlib.sha256))
        write_all(file, [memoryview(salt), memoryview(aead.encrypt(_nonce(0), head, None))])
        for number, piece in _pieces(data):
            write_all(file, [memoryview(aead.encrypt(_nonce(number), piece.data, None))])

    def read(self, file: int, head: bytearray, out: UInt8) -> None:
        """See `RecordFiles`."""
        from cryptography.exceptions import InvalidTag

        salt, sealed = bytearray(_SALT), bytearray(len(head) + _TAG)
        read_all(file, [memoryview(salt), memoryview(sealed)])
        aead = self._aead(hmac.digest(self._content, bytes(salt), hashlib.sha256))
        try:
            head[:] = aead.decrypt(_nonce(0), bytes(sealed), None)
            for number, piece in _pieces(out):
                found = bytearray(len(piece) + _TAG)
                read_all(file, [memoryview(found)])
                piece[:] = np.frombuffer(aead.decrypt(_nonce(number), found, None), np.uint8)
        except InvalidTag:
            raise Damaged("it was changed, or is not this folder's") from None


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE, "little")


def _pieces(data: UInt8) -> Iterator[tuple[int, UInt8]]:
    """The pieces of a block's bytes, by number from 1 on."""
    for number, at in enumerate(range(0, len(data), PIECE_BYTES), 1):
        yield number, data[at : at + PIECE_BYTES]
