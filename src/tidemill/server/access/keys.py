"""API keys: sources, comparison and reloading of a key file.

Only SHA-256 digests are stored. A key is a random string, not a password, so a fast hash suffices.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidemill.base.errors import TidemillError, config_error
from tidemill.base.files import open_regular
from tidemill.contract.quotas import NO_LIMITS, Limits, parse_limits
from tidemill.server.access.policy import OPEN, Policy

MAX_FILE_BYTES = 16 * 2**20
MAX_WEIGHT = 1e6
SHORT_KEY = 16
"""Minimum length of a key; a shorter one causes a warning."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
# Characters of a Bearer token, a little wider than RFC 6750's b64token.
_KEY = re.compile(r"[!-~]{1,512}")


class Role(StrEnum):
    """What the holder of a key may do."""

    ADMIN = "admin"  # everything
    MANAGER = "manager"  # as user; and the keys, limits and usage of its own team
    USER = "user"  # generation, tokenization, models
    METRICS = "metrics"  # /metrics alone
    AUDITOR = "auditor"  # reads keys, teams, usage and the audit trail; changes nothing


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a key is.

    Attributes:
        organisation, team, user: their ids; empty: none.
        organisation_name, team_name, user_name: for messages and reports.
    """

    organisation: str = ""
    team: str = ""
    user: str = ""
    organisation_name: str = ""
    team_name: str = ""
    user_name: str = ""


NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key.

    Attributes:
        name: unique; identifies the key in logs and metrics.
        digest: SHA-256 of the key, 32 bytes.
        role: its permissions.
        weight: its share of the engine relative to other clients.
        id: of a key in the database; empty: it comes from a file or the command line.
        owner: whose it is; of a key in the database.
        policy: what else it may.
        limits: on its use, as its entry in a file states them.
    """

    name: str
    digest: bytes
    role: Role = Role.USER
    weight: float = 1.0
    id: str = ""
    owner: Owner = NOBODY
    policy: Policy = OPEN
    limits: Limits = NO_LIMITS


class KeyStore(Protocol):
    """A store of keys: of files (`StaticKeys`), of the database (`stored.StoredKeys`), or both."""

    @property
    def closed(self) -> bool:
        """True when requests need a key."""

    @property
    def settled(self) -> bool:
        """False while it is not known whether requests need one; see `settle`."""

    @property
    def reloadable(self) -> bool:
        """Whether `reload` has something to read."""

    async def settle(self) -> None:
        """Wait until it is known, but not for long."""

    async def find(self, token: str) -> Key | None:
        """The key for `token`, or None; takes the same time for every wrong token.

        Raises:
            Rejection: 503: it cannot be told whether there is such a key.
        """

    def by_id(self, key_id: str) -> Key | None:
        """The key of the database with this id, or None where it does not count any more."""

    def reload(self) -> str:
        """Reload the keys from their source; returns a message for the log.

        Raises:
            TidemillError: kind CONFIG; the old keys stay.
        """


class NoKeys:
    """A store without keys: no authentication."""

    closed = False
    settled = True
    reloadable = False

    async def settle(self) -> None:
        """It is known."""

    async def find(self, token: str) -> Key | None:
        """None."""
        return None

    def by_id(self, key_id: str) -> Key | None:
        """None."""
        return None

    def reload(self) -> str:
        """Nothing to read."""
        return "there are no API keys to read again"


def digest_of(key: str) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(key.encode()).digest()


class StaticKeys:
    """Keys from the command line and from a file.

    Args:
        keys: of the command line, in plain text; they are administrators named key-1, key-2, ...
        path: of a TOML or JSON file (see `read_keys`), or None.

    Attributes:
        notes: warnings for the operator.

    Raises:
        TidemillError: kind CONFIG.
    """

    def __init__(self, keys: Sequence[str] = (), path: Path | None = None) -> None:
        self.notes: list[str] = []
        self._path = path
        self._given = [
            Key(f"key-{i}", digest_of(_check_key(key, "api-key")), Role.ADMIN)
            for i, key in enumerate(keys, 1)
        ]
        if any(len(key) < SHORT_KEY for key in keys):
            self.notes.append(
                f"an API key is shorter than {SHORT_KEY} characters and may be guessed; "
                "`openssl rand -hex 24` makes a good one"
            )
        self._keys = self._read()

    def _read(self) -> tuple[Key, ...]:
        found: list[Key] = list(self._given)
        if self._path is not None:
            keys, notes = read_keys(self._path)
            found += keys
            self.notes += notes
        _check_unique(found)
        return tuple(found)

    settled = True
    reloadable = True

    @property
    def closed(self) -> bool:
        """True: a configured store requires keys even while it is empty."""
        return True

    async def settle(self) -> None:
        """It is known."""

    def by_id(self, key_id: str) -> Key | None:
        """None: these have no ids."""
        return None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> frozenset[str]:
        """The keys' names."""
        return frozenset(key.name for key in self._keys)

    async def find(self, token: str) -> Key | None:
        """Compares digests in constant time, and always with every key."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def reload(self) -> str:
        """Reload the file; on an error the old keys stay."""
        if self._path is None:
            return "the API keys come from the command line; there is no file to read again"
        before = {key.name for key in self._keys}
        self.notes = []
        self._keys = self._read()
        after = {key.name for key in self._keys}
        return (
            f"{len(after)} API keys after reading {self._path.name} again: "
            f"{len(after - before)} new, {len(before - after)} gone"
        )


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    key: str | None = None
    sha256: str | None = None
    role: Role = Role.USER
    weight: float = 1.0
    rpm: Any = None
    tpm: Any = None
    quotas: dict[str, Any] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_Entry]


def read_keys(path: Path) -> tuple[list[Key], list[str]]:
    """The keys of a file, and warnings for the operator.

    The file is TOML, or JSON when its name ends so: a list ``keys`` of tables with ``name``,
    ``key`` or ``sha256`` (64 hexadecimal digits), and optionally ``role``, ``weight``, ``rpm``,
    ``tpm``, and a table ``quotas`` with any limits (docs/quotas.md).

    Raises:
        TidemillError: kind CONFIG, naming the entry; never quoting a key.
    """
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise _bad(path, f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # The messages have only a position; a chained exception could quote the text.
        raise _bad(path, f"is not valid: {_location(error)}") from None
    try:
        entries = msgspec.convert(document, _File).keys
    except msgspec.ValidationError as error:
        raise _bad(path, f"is not as it should be: {error}") from None
    keys = [_key_of(path, index, entry) for index, entry in enumerate(entries)]
    notes = []
    if stat.S_IMODE(mode) & 0o077 and any(entry.key for entry in entries):
        notes.append(
            f"others can read the API keys in {path.name}; `chmod 600` it, or keep sha256 digests"
        )
    if not keys:
        notes.append(f"{path.name} has no keys: every request is rejected until a key is added")
    return keys, notes


def _key_of(path: Path, index: int, entry: _Entry) -> Key:
    where = f"keys[{index}]"
    if not _NAME.fullmatch(entry.name):
        raise _bad(path, f"{where}.name must be 1 to 64 letters, digits and ._@-")
    if (entry.key is None) == (entry.sha256 is None):
        raise _bad(path, f"{where} ({entry.name}) must have either key or sha256")
    if entry.sha256 is not None:
        if not _DIGEST.fullmatch(entry.sha256):
            raise _bad(path, f"{where}.sha256 ({entry.name}) must be 64 hexadecimal digits")
        digest = bytes.fromhex(entry.sha256)
    else:
        assert entry.key is not None
        digest = digest_of(_check_key(entry.key, "api-keys", f"{path.name}: {where}.key"))
    if not (math.isfinite(entry.weight) and 0 < entry.weight <= MAX_WEIGHT):
        raise _bad(path, f"{where}.weight ({entry.name}) must be above 0, to {MAX_WEIGHT:g}")
    limits = _limits_of(path, where, entry)
    return Key(entry.name, digest, entry.role, entry.weight, limits=limits)


def _limits_of(path: Path, where: str, entry: _Entry) -> Limits:
    short = {"rpm": entry.rpm, "tpm": entry.tpm}
    table = {name: value for name, value in short.items() if value is not None}
    try:
        return parse_limits({**table, **entry.quotas}, f"{where} ({entry.name})")
    except TidemillError as error:
        raise _bad(path, error.message) from None


def _check_key(key: str, flag: str, where: str = "--api-key") -> str:
    if not _KEY.fullmatch(key):
        raise config_error(
            flag, f"{where} must be 1 to 512 visible ASCII characters without spaces"
        )
    return key


def _check_unique(keys: Sequence[Key]) -> None:
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for key in keys:
        if key.name in names:
            raise config_error("api-keys", f"two API keys have the name {key.name!r}")
        if key.digest in digests:
            other = digests[key.digest]
            raise config_error("api-keys", f"the API keys {other!r} and {key.name!r} are the same")
        names.add(key.name)
        digests[key.digest] = key.name


def _location(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    found = re.search(r"\(at [^)]*\)", str(error))
    return f"a syntax error {found[0]}" if found else "a syntax error or no UTF-8"


def _bad(path: Path, message: str) -> TidemillError:
    return config_error("api-keys", f"the key file {path} {message}")
