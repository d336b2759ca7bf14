"""Secrets: those of keys, and the server's own, without which the stored ones are of no use.

A key is ``tm-`` and 43 characters (256 random bits) and 6 of a checksum, by which scanners
recognise one that leaked and a mistyped one is told from a wrong one. What is stored is
HMAC-SHA-256, by the server's secret, of the key's SHA-256: whoever has the database alone can
neither use a key nor test a guess. Key files hold SHA-256 digests, which can be imported so.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import zlib
from pathlib import Path

from tidemill.base.errors import config_error
from tidemill.base.files import open_regular

SECRET_VARIABLE = "TIDEMILL_SECRET"
SECRET_FILE = "secret"
MIN_SECRET = 16
PREFIX = "tm-"
PREFIX_CHARS = 11
"""Characters of a key that are stored and shown, for recognition: 48 of its 256 bits."""

_BODY = 43
_CHECK = 6
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEY = re.compile(rf"{PREFIX}([A-Za-z0-9]{{{_BODY}}})([A-Za-z0-9]{{{_CHECK}}})")


def new_key() -> str:
    """A new key's secret."""
    body = "".join(secrets.choice(_ALPHABET) for _ in range(_BODY))
    return f"{PREFIX}{body}{_checksum(body)}"


def is_mistyped(key: str) -> bool:
    """Whether a key looks like one of `new_key` and is none: a character is wrong or missing."""
    if not key.startswith(PREFIX):
        return False
    found = _KEY.fullmatch(key)
    return found is None or _checksum(found[1]) != found[2]


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    found = ""
    for _ in range(_CHECK):
        value, digit = divmod(value, len(_ALPHABET))
        found += _ALPHABET[digit]
    return found


def prefix_of(key: str) -> str:
    """The part of a key by which people recognise it."""
    return key[:PREFIX_CHARS] if key.startswith(PREFIX) else ""


class KeyHash:
    """The hash of keys, by a server's secret.

    Args:
        secret: the server's.
    """

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(hashlib.sha256(b"tidemill keys\0" + secret).digest(), None, "sha256")

    def of(self, key: str) -> bytes:
        """What is stored of a key."""
        return self.of_sha256(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest())

    def of_sha256(self, digest: bytes) -> bytes:
        """What is stored of a key of which only the SHA-256 is known."""
        keyed = self._keyed.copy()
        keyed.update(digest)
        return keyed.digest()

    @property
    def fingerprint(self) -> str:
        """Tells secrets apart and reveals nothing of them."""
        return self.of_sha256(b"fingerprint").hex()[:32]


def read_secret(home: Path) -> bytes:
    """The server's secret: ``TIDEMILL_SECRET``, else the file in `home`, made where there is none.

    Raises:
        TidemillError: kind CONFIG: too short, or the file cannot be used.
    """
    given = os.environ.get(SECRET_VARIABLE, "")
    if given:
        if len(given) < MIN_SECRET:
            raise config_error(
                "secret",
                f"{SECRET_VARIABLE} has {len(given)} characters and needs {MIN_SECRET} or more; "
                "`openssl rand -hex 32` makes a good one",
            )
        return given.encode()
    path = home / SECRET_FILE
    try:
        _make(path)
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            found = file.read(4096).strip()
    except OSError as error:
        raise config_error("secret", f"{path} cannot be used: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise config_error("secret", f"others can read {path}: `chmod 600` it")
    if len(found) < MIN_SECRET:
        raise config_error("secret", f"{path} is damaged: restore it from a backup")
    return found


def _make(path: Path) -> None:
    """Make the file unless it exists: whole, or not at all, whoever else makes it now."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
