"""Keys of the database, in memory: no request waits for the database once it was read.

Whether requests need a key is known at the start without SQLAlchemy where the database is a file.
A change is noticed within `POLL_SECONDS`: by the times of the file, or by a counter in the
database. While the database does not answer, the keys that were read last go on counting for a
configured time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.server.access.keys import Key, KeyStore, Owner, Role
from tidemill.server.access.policy import Policy
from tidemill.server.errors import Rejection, reject

if TYPE_CHECKING:
    from tidemill.server.storage import Storage
    from tidemill.store.database import Database
    from tidemill.store.location import Location
    from tidemill.store.secret import KeyHash
    from tidemill.store.snapshot import KeyRecord, Snapshot

log = get_logger(__name__)

POLL_SECONDS = 1.0
SETTLE_SECONDS = 10.0
"""How long a request waits, at the start of a server, until the keys are read."""

TICK_SECONDS = 2.0
"""More than the coarsest clock of a file system."""

RETRY_AFTER = "5"

_Stamp = tuple[tuple[int, int, int] | None, ...]


class StoredKeys:
    """See the module docstring.

    Args:
        location: of the database.
        home: ``TIDEMILL_HOME``, where the server's secret is.
        required: requests need a key whatever the database says.
        outage: seconds for which keys count while the database does not answer.
    """

    reloadable = False

    def __init__(
        self, location: Location, home: Path, *, required: bool = False, outage: float = 3600.0
    ) -> None:
        self._location = location
        self._home = home
        self._outage = outage
        # The stamp first: what changes between the two is read again.
        self._stamp = _stamp(location.path)
        self._required = True if required else _requires_keys(location.path)
        self._hash: KeyHash | None = None
        self._keys: dict[bytes, tuple[Key, int | None]] | None = None
        self._by_id: dict[str, tuple[Key, int | None]] = {}
        self._teams: dict[str, Owner] = {}
        self._version = -1
        self._answered = monotonic()
        self._failing = False
        self._storage: Storage | None = None
        self._task: asyncio.Task[None] | None = None
        self.taken: Callable[[], frozenset[str]] = frozenset

    @property
    def closed(self) -> bool:
        """True when requests need a key, and while that is not known."""
        return self._required is not False

    @property
    def settled(self) -> bool:
        """See `KeyStore`."""
        return self._required is not None

    def require(self) -> None:
        """Requests need a key, whatever the database says."""
        self._required = True

    def __len__(self) -> int:
        """Keys that count."""
        return len(self._by_id)

    # -- following the database --------------------------------------------------------------------

    def follow(self, storage: Storage) -> None:
        """Read the keys of the database, and go on reading what changes; once there is a server."""
        self._storage = storage
        # First: what else begins with the database asks for keys by their ids.
        storage.on_open.insert(0, self._read)
        storage.on_close.append(self.close)
        if self.closed:
            storage.start()
        self._task = asyncio.ensure_future(self._follow(storage))

    async def close(self) -> None:
        """Follow it no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, storage: Storage) -> None:
        said = ""
        while True:
            try:
                await self._look(storage)
                said, self._failing = "", False
            except TidemillError as error:
                self._failing = True
                if error.message != said:
                    log.error("the keys of the database stay as they were: %s", error.message)
                said = error.message
            except Exception:
                self._failing = True
                log.exception("the keys of the database stay as they were")
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, storage: Storage) -> None:
        stamp = _stamp(self._location.path)
        known = self._keys is not None or not self.closed
        if stamp and known and stamp == self._stamp and not _young(stamp):
            self._answered = monotonic()
            return
        database = await storage.opened()
        if stamp and stamp[0] and self._stamp[0] and stamp[0][0] != self._stamp[0][0]:
            self._version = -1  # another file, whose changes were counted from another start
        await self._read(database)
        self._stamp = stamp

    async def _read(self, database: Database) -> None:
        from tidemill.store.snapshot import read_snapshot, read_version

        if self._keys is not None:
            version = await database.read(read_version)
            if version == self._version:
                self._answered = monotonic()
                return
        if self._hash is None:
            self._hash = await asyncio.to_thread(_key_hash, self._home)
        fingerprint, now = self._hash.fingerprint, int(wall())
        found = await database.read(lambda c: read_snapshot(c, now, fingerprint))
        self._take(found)

    def _take(self, snapshot: Snapshot) -> None:
        taken = self.taken()
        keys = {record.digest: (_key(record, taken), record.ends) for record in snapshot.keys}
        before = len(self._by_id)
        self._keys = keys
        self._by_id = {}
        for key, ends in keys.values():
            known = self._by_id.get(key.id)
            if known is None or known[1] is not None:  # of several secrets, the one that stays
                self._by_id[key.id] = (key, ends)
        self._teams = {
            team.name: Owner(
                organisation=team.organisation,
                team=team.id,
                organisation_name=team.organisation_name,
                team_name=team.name,
            )
            for team in snapshot.teams
        }
        self._version = snapshot.version
        self._answered = monotonic()
        # A server that once needed keys needs them as long as it runs, whatever becomes of the
        # database.
        opened = self._required is False
        self._required = bool(self._required) or snapshot.required
        if opened and self._required:
            log.warning("there is a key now: every route but the probes wants one from now on")
        if before != len(self._by_id):
            log.info("API keys of the database: %d", len(self._by_id))

    # -- requests ----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """See `KeyStore`."""
        await self._wait()

    async def _wait(self) -> None:
        """Wait until the keys were read once."""
        deadline = monotonic() + SETTLE_SECONDS
        # Once an attempt has failed, requests do not wait for the next one.
        while self._keys is None and monotonic() < deadline and not self._failing:
            if self._storage is not None:
                with contextlib.suppress(TidemillError):
                    await self._storage.opened(deadline - monotonic())
            await asyncio.sleep(0.02)
        if self._keys is None:
            raise _unavailable("the keys cannot be read from the database; the log says why")

    async def find(self, token: str) -> Key | None:
        """See `KeyStore`. The table is searched by the token's keyed hash, of which whoever guesses
        tokens can choose no bit: times reveal nothing of what is in it."""
        if self._keys is None:
            await self._wait()
        assert self._keys is not None
        assert self._hash is not None
        found = self._keys.get(self._hash.of(token))
        if monotonic() - self._answered > self._outage + 2 * POLL_SECONDS:
            raise _unavailable(
                f"the database of keys has not answered for {monotonic() - self._answered:.0f} s"
            )
        return self._counts(found)

    def by_id(self, key_id: str) -> Key | None:
        """See `KeyStore`."""
        return self._counts(self._by_id.get(key_id))

    async def team(self, name: str) -> Owner | None:
        """A team by name; None: there is none, or it is disabled."""
        if self._keys is None:
            await self._wait()
        return self._teams.get(name)

    def reload(self) -> str:
        """See `KeyStore`."""
        return "the API keys of the database are followed; there is no file to read again"

    @staticmethod
    def _counts(found: tuple[Key, int | None] | None) -> Key | None:
        if found is None:
            return None
        key, ends = found
        return None if ends is not None and wall() >= ends else key


class AllKeys:
    """Keys of files and of the database.

    Args:
        given: of files and the command line.
        stored: of the database.
    """

    reloadable = True

    def __init__(self, given: KeyStore, stored: StoredKeys) -> None:
        self._given = given
        self._stored = stored

    closed = True
    settled = True

    async def settle(self) -> None:
        """It is known."""

    async def find(self, token: str) -> Key | None:
        """See `KeyStore`. Keys of files count whatever becomes of the database."""
        return await self._given.find(token) or await self._stored.find(token)

    def by_id(self, key_id: str) -> Key | None:
        """See `KeyStore`."""
        return self._stored.by_id(key_id)

    def reload(self) -> str:
        """See `KeyStore`; those of the database need none."""
        return self._given.reload()


def _key(record: KeyRecord, taken: frozenset[str]) -> Key:
    # A key of a file may have the same name, and is somebody else's.
    name = f"{record.name}/{record.id}" if record.name in taken else record.name
    return Key(
        name=name,
        digest=record.digest,
        role=Role(record.role),
        weight=record.weight,
        id=record.id,
        owner=Owner(
            organisation=record.organisation,
            team=record.team,
            user=record.user,
            organisation_name=record.organisation_name,
            team_name=record.team_name,
            user_name=record.user_name,
        ),
        policy=Policy(
            models=tuple(record.models or ()),
            routes=tuple(record.routes or ()),
            networks=tuple(ipaddress.ip_network(n) for n in record.addresses or ()),
            max_tokens=record.max_tokens,
            background=record.background,
            residency=record.residency or "",
            no_content=record.no_content,
        ),
    )


def _unavailable(message: str) -> Rejection:
    return reject(
        503,
        f"{message}; try again later",
        code="database_unavailable",
        headers={"Retry-After": RETRY_AFTER},
    )


def _key_hash(home: Path) -> KeyHash:
    from tidemill.store.secret import KeyHash, read_secret

    return KeyHash(read_secret(home))


def _stamp(path: Path | None) -> _Stamp:
    """What tells that a file was written to: of it and of its write-ahead log."""
    if path is None:
        return ()
    return tuple(_times(name) for name in (path, f"{path}-wal"))


def _young(stamp: _Stamp) -> bool:
    """Whether a write within the same tick of the file system's clock may not show in it."""
    return any(times is not None and wall() - times[2] / 1e9 < TICK_SECONDS for times in stamp)


def _times(path: Path | str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _requires_keys(path: Path | None) -> bool | None:
    """Whether a file says that requests need keys, read without SQLAlchemy; None: unknown."""
    if path is None:
        return None
    try:
        if not path.exists() or not path.stat().st_size:
            return False
    except OSError:
        return None
    import sqlite3

    from tidemill.store.names import KEYS_REQUIRED

    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)
        try:
            query = "SELECT value FROM settings WHERE name = ?"
            found = connection.execute(query, (KEYS_REQUIRED,)).fetchone()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        return False if "no such table" in str(error) else None
    except sqlite3.Error:
        return None
    return found is not None and found[0] == "true"
