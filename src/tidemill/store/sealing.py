"""Keys that seal the audit log: an HMAC key from the server's secret, or an Ed25519 key.

With HMAC, who can verify can also seal. With Ed25519, whose private key only the servers have, the
public key suffices to verify.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Protocol

from tidemill.base.errors import config_error
from tidemill.base.files import open_regular
from tidemill.store.secret import read_secret

KEY_VARIABLE = "TIDEMILL_AUDIT_KEY"
"""Path of a file: 32 bytes or more for HMAC, or a PEM file of an Ed25519 key."""

_KEY_BYTES = 32
_MAX_BYTES = 2**14
_PEM = b"-----BEGIN "


class Sealer(Protocol):
    """Seals, and verifies seals.

    Attributes:
        key_id: tells keys apart; it reveals nothing about the key.
    """

    key_id: str

    def seal(self, message: bytes) -> bytes:
        """A seal of a message, at most 128 bytes.

        Raises:
            TidemillError: kind CONFIG: this key can only verify.
        """

    def matches(self, message: bytes, seal: bytes) -> bool:
        """Whether it is this key's seal of this message."""


class HmacSealer:
    """HMAC-SHA-256."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.key_id = "hmac-" + hashlib.sha256(b"tidemill audit key\0" + key).hexdigest()[:16]

    def seal(self, message: bytes) -> bytes:
        """See `Sealer`."""
        return hmac.digest(self._key, message, "sha256")

    def matches(self, message: bytes, seal: bytes) -> bool:
        """See `Sealer`."""
        return hmac.compare_digest(self.seal(message), seal)


class Ed25519Sealer:
    """Ed25519, by the package `cryptography`.

    Args:
        pem: a private key, or a public one, which only verifies.
        where: names the file in errors.

    Raises:
        TidemillError: kind CONFIG.
    """

    def __init__(self, pem: bytes, where: str) -> None:
        try:
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ed25519
        except ModuleNotFoundError as error:
            raise config_error(
                KEY_VARIABLE, f"the audit key {where} is a PEM file: pip install cryptography"
            ) from error
        private: ed25519.Ed25519PrivateKey | None = None
        public: object
        try:
            if b"PRIVATE KEY" in pem:
                found = serialization.load_pem_private_key(pem, None)
                private = found if isinstance(found, ed25519.Ed25519PrivateKey) else None
                public = None if private is None else private.public_key()
            else:
                public = serialization.load_pem_public_key(pem)
        except (ValueError, TypeError) as error:
            raise config_error(
                KEY_VARIABLE, f"the audit key {where} is not a PEM file without a password: {error}"
            ) from None
        if not isinstance(public, ed25519.Ed25519PublicKey):
            raise config_error(KEY_VARIABLE, f"the audit key {where} is not an Ed25519 key")
        self._private, self._public, self._where = private, public, where
        raw = public.public_bytes_raw()
        self.key_id = "ed25519-" + hashlib.sha256(raw).hexdigest()[:16]

    def seal(self, message: bytes) -> bytes:
        """See `Sealer`."""
        if self._private is None:
            raise config_error(
                KEY_VARIABLE,
                f"the audit key {self._where} is a public key; a server seals with the private one",
            )
        return bytes(self._private.sign(message))

    def matches(self, message: bytes, seal: bytes) -> bool:
        """See `Sealer`."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(seal, message)
        except InvalidSignature:
            return False
        return True


def open_sealer(home: Path) -> Sealer:
    """The key that `TIDEMILL_AUDIT_KEY` names, else one from the server's secret.

    Args:
        home: ``TIDEMILL_HOME``, where the secret is; it is made where there is none.

    Raises:
        TidemillError: kind CONFIG: it cannot be read, or is none.
    """
    named = os.environ.get(KEY_VARIABLE)
    if not named:
        return HmacSealer(hashlib.sha256(b"tidemill audit\0" + read_secret(home)).digest())
    path = Path(named).expanduser()
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES)
    except OSError as error:
        raise config_error(
            KEY_VARIABLE, f"the audit key {path} cannot be read: {error.strerror or error}"
        ) from error
    if data.startswith(_PEM):
        return Ed25519Sealer(data, str(path))
    if len(data) < _KEY_BYTES:
        raise config_error(
            KEY_VARIABLE, f"the audit key {path} has {len(data)} bytes; it needs {_KEY_BYTES}"
        )
    return HmacSealer(data)
