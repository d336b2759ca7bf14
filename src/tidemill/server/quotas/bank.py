"""The store of a running server, as the bank of its quotas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from tidemill.base.clock import wall
from tidemill.contract.quotas import Limits
from tidemill.server.quotas.account import Subject
from tidemill.server.quotas.treasury import Entry
from tidemill.server.storage import Storage

if TYPE_CHECKING:
    from tidemill.store.database import Work

T = TypeVar("T")

OPEN_SECONDS = 2.0
"""How long a round waits for a database that is not open yet."""

YOUNG_SECONDS = 2.0
"""Files that are younger may change again without a new time: clocks of file systems are coarse."""


class StoreBank:
    """A `treasury.Bank`.

    Args:
        storage: the database, opened by the first call.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def draw(
        self, server: str, wall: float, entries: Sequence[Entry]
    ) -> Sequence[tuple[int, int]]:
        """See `Bank`."""
        from tidemill.store import balances

        draws = [
            balances.Draw(
                *(entry.subject[0].value, entry.subject[1], entry.name, entry.want.period),
                *(entry.amount, entry.want.want, entry.want.least, entry.want.forced),
                held=entry.held,
                excess=entry.excess,
            )
            for entry in entries
        ]
        found = await self._write(lambda c: balances.draw(c, server, int(wall * 1000), draws))
        return [(one.granted, one.taken) for one in found]

    async def renew(self, server: str, wall: float) -> int:
        """See `Bank`."""
        from tidemill.store import balances

        return await self._write(lambda c: balances.renew(c, server, int(wall * 1000)))

    async def leave(self, server: str) -> None:
        """See `Bank`."""
        from tidemill.store import balances

        await self._write(lambda c: balances.leave(c, server))

    async def prune(self, wall: float) -> None:
        """See `Bank`."""
        from tidemill.store import balances

        await self._write(lambda c: balances.prune(c, int(wall * 1000)))

    async def version(self) -> int:
        """See `Bank`."""
        from tidemill.store import limits

        database = await self._storage.opened(OPEN_SECONDS)
        return await database.read(limits.read_version)

    async def limits(self) -> dict[Subject, Limits]:
        """See `Bank`."""
        from tidemill.store import limits

        database = await self._storage.opened(OPEN_SECONDS)
        return dict(await database.read(limits.read_limits))

    def stamp(self) -> object:
        """See `Bank`."""
        path = self._storage.location.path
        if path is None:
            return None
        found = []
        for one in (path, path.with_name(f"{path.name}-wal")):
            try:
                status = one.stat()
            except OSError:
                continue
            if wall() - status.st_mtime < YOUNG_SECONDS:
                return None
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    async def _write(self, work: Work[T]) -> T:
        database = await self._storage.opened(OPEN_SECONDS)
        return await database.write(work)
