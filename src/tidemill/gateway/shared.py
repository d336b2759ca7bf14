"""What gateways of one database tell each other: where sessions are, which targets are down or
busy, what was spent today. Decisions are made from memory; rounds write and read beside them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import TidemillError
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.gateway.targets import today

if TYPE_CHECKING:
    from tidemill.gateway.fleet import Fleet
    from tidemill.server.context import ServerContext
    from tidemill.server.storage import Storage
    from tidemill.store.gateways import Note

log = get_logger(__name__)

SECONDS = 1.0
"""Between two rounds."""

OVERLAP_SECONDS = 5.0
"""Notes are read again for so long: clocks differ, and transactions end later than they begin."""

KEPT_SECONDS = 2 * 86400.0
SESSION, DOWN, BUSY, SPENT = "session", "down", "busy", "spent"
NEWS_SECONDS = 30.0
"""A target's trouble that was said longer ago says nothing."""


class Shared:
    """See the module docstring.

    Args:
        fleet: of this gateway.
        storage: the database of all of them.
    """

    def __init__(self, fleet: Fleet, storage: Storage) -> None:
        self._fleet = fleet
        self._storage = storage
        self._me = new_id("gw")[:32]
        self._task: asyncio.Task[None] | None = None
        self._down = set[str]()  # targets that are out, as was said or heard
        self._busy: dict[str, float] = {}
        self._spent: dict[str, tuple[int, float]] = {}  # as said
        self._heard: dict[tuple[str, str, str], int] = {}
        self._since = 0
        self._rounds = 0
        fleet.moved = {}

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """End, after what is to be said was said."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._try()

    async def _run(self) -> None:
        while True:
            await self._try()
            await asyncio.sleep(SECONDS)

    async def _try(self) -> None:
        try:
            await self.round()
        except TidemillError as error:
            log.info("gateways could not talk: %s", error.message)
        except Exception:
            log.exception("gateways could not talk")

    async def round(self) -> None:
        """Say what is new here, and take what others said."""
        database = await self._storage.opened(SECONDS)
        from tidemill.store import gateways

        now = round(wall() * 1000)
        sessions, self._fleet.moved = self._fleet.moved, {}
        try:
            notes = [*self._of_targets(), *self._of_sessions(sessions or {})]
            if notes:
                await database.write(lambda c: gateways.write(c, self._me, now, notes))
        except BaseException:
            self._fleet.moved = {**(sessions or {}), **(self._fleet.moved or {})}
            self._spent.clear()
            raise
        since = self._since
        for note in await database.read(lambda c: gateways.of_others(c, self._me, since)):
            key = note.kind, note.name, note.gateway
            self._since = max(self._since, note.at - round(OVERLAP_SECONDS * 1000))
            if self._heard.get(key, -1) < note.at:
                self._take(note, now)
                if note.kind != SESSION:
                    self._heard[key] = note.at
        if self._rounds % 600 == 0:
            before = now - round(KEPT_SECONDS * 1000)
            await database.write(lambda c: gateways.prune(c, before))
        self._rounds += 1

    # -- what is said --------------------------------------------------------------------------

    def _of_sessions(self, sessions: dict[str, str]) -> list[Note]:
        from tidemill.store.gateways import Note

        return [Note(SESSION, session, target) for session, target in sessions.items()]

    def _of_targets(self) -> list[Note]:
        from tidemill.store.gateways import Note

        now, found = monotonic(), []
        for target in self._fleet.targets:
            if self._fleet.is_here(target):
                continue
            name, health = target.name, target.health
            if health.opened is None:
                self._down.discard(name)
            elif name not in self._down:
                self._down.add(name)
                found.append(Note(DOWN, name, health.reason[:256]))
            if health.busy_until > now and self._busy.get(name) != health.busy_until:
                self._busy[name] = health.busy_until
                found.append(Note(BUSY, name, amount=wall() + health.busy_until - now))
            target.account.turn(today())
            spent = (target.account.day, target.account.own)
            if spent[1] and self._spent.get(name) != spent:
                self._spent[name] = spent
                found.append(Note(SPENT, f"{name}@{spent[0]}", amount=spent[1]))
        return found

    # -- what is heard -------------------------------------------------------------------------

    def _take(self, note: Note, now: int) -> None:
        if note.kind == SESSION:
            self._fleet.place(note.name, note.text)
            return
        name, _, day = note.name.partition("@")
        others = (one for one in self._fleet.targets if not self._fleet.is_here(one))
        target = next((one for one in others if one.name == name), None)
        if target is None:
            return
        news = now - note.at < NEWS_SECONDS * 1000
        if note.kind == DOWN and news and target.health.opened is None:
            self._down.add(name)
            target.health.failed(monotonic(), f"another gateway: {note.text}", down=True)
        elif note.kind == BUSY and news:
            until = monotonic() + min(60.0, note.amount - wall())
            if until > target.health.busy_until:
                target.health.busy_until = self._busy[name] = until
        elif note.kind == SPENT and day == str(today()):
            target.account.turn(today())
            target.account.others[note.gateway] = note.amount


def share(fleet: Fleet, context: ServerContext) -> Shared | None:
    """Talk to the gateways of the same database from now on, if there is one."""
    if context.storage is None:
        return None
    shared = Shared(fleet, context.storage)
    shared.start()
    return shared
