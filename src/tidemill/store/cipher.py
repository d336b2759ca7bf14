"""What clients say and are answered is encrypted in the database: AES-256-GCM.

The key comes from the server's secret (`store.secret`). A text is bound to its place, so that no
row can be moved to another owner or id. Needs the package `cryptography`.
"""

from __future__ import annotations

import hashlib
import os

from tidemill.base.errors import TidemillError, config_error

_NONCE = 12
_KEY_ID = 4


class Undecipherable(TidemillError):
    """A text that this server's secret does not open, or that was changed."""


class Cipher:
    """Encrypts and decrypts.

    Args:
        secret: the server's.

    Raises:
        TidemillError: kind CONFIG: the package is missing.
    """

    def __init__(self, secret: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise config_error(
                "content",
                "content is kept in the database only encrypted: pip install cryptography",
            ) from None
        key = hashlib.sha256(b"tidemill content\0" + secret).digest()
        self._cipher = AESGCM(key)
        self._id = hashlib.sha256(key).digest()[:_KEY_ID]

    def encrypt(self, text: bytes, place: str) -> bytes:
        """Encrypt a text for a place (a table, an owner, an id)."""
        nonce = os.urandom(_NONCE)
        return self._id + nonce + self._cipher.encrypt(nonce, text, place.encode())

    def decrypt(self, data: bytes, place: str) -> bytes:
        """The text of a place.

        Raises:
            Undecipherable: another secret encrypted it, or it was changed.
        """
        from cryptography.exceptions import InvalidTag

        if data[:_KEY_ID] != self._id:
            raise _undecipherable("it was encrypted by a server with another secret")
        nonce, sealed = data[_KEY_ID : _KEY_ID + _NONCE], data[_KEY_ID + _NONCE :]
        try:
            return self._cipher.decrypt(nonce, sealed, place.encode())
        except (InvalidTag, ValueError):
            raise _undecipherable("it was changed") from None


def _undecipherable(why: str) -> Undecipherable:
    from tidemill.base.errors import ErrorKind

    return Undecipherable(ErrorKind.DATABASE, f"stored content cannot be read: {why}")
