"""Responses and conversations in the database: written behind, read when they are asked for.

Memory is what requests work on (`MemoryStore`); the archive has what was forgotten there, and what
was kept before a restart. Only responses that have ended are archived. Texts are encrypted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.base.clock import wall
from tidemill.base.errors import TidemillError
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.server.dialects.openai.responses.store import (
    Conversation,
    Entry,
    Link,
    MemoryStore,
    StoredResponse,
)

if TYPE_CHECKING:
    from tidemill.store.cipher import Cipher
    from tidemill.store.content import ItemRow, LinkRow, ResponseRow
    from tidemill.store.database import Database

log = get_logger(__name__)

BEHIND_SECONDS = 0.2
MAX_WAITING = 4096
"""Entries that wait for the database; beyond, the oldest is not archived, which is logged."""

ENDED = frozenset({"completed", "failed", "incomplete", "cancelled"})


class Archive:
    """Writes and reads entries.

    Args:
        opened: gives the database, when it is first needed.
        cipher: of the texts.
    """

    def __init__(self, opened: Callable[[], Awaitable[Database]], cipher: Cipher) -> None:
        self._opened = opened
        self._cipher = cipher
        self._waiting: OrderedDict[str, Entry] = OrderedDict()
        self._removed: dict[str, str] = {}  # id -> owner
        self._known: dict[str, dict[str, int]] = {}  # conversation -> its archived items' numbers
        self._task: asyncio.Task[None] | None = None
        self._lost = 0
        self._writing = 0

    @property
    def behind(self) -> int:
        """Entries that are not written yet."""
        return len(self._waiting) + len(self._removed) + self._writing

    # -- writing -----------------------------------------------------------------------------

    def save(self, entry: Entry) -> None:
        """Archive an entry in its present state, soon."""
        self._waiting[entry.id] = entry
        self._waiting.move_to_end(entry.id)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
            self._lost += 1
            log.warning("the database is behind: %d entries were not archived", self._lost)
        self._start()

    def remove(self, entry: Entry) -> None:
        """Remove an entry, soon."""
        self._waiting.pop(entry.id, None)
        self._known.pop(entry.id, None)
        self._removed[entry.id] = entry.owner
        self._start()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._waiting or self._removed:
            await asyncio.sleep(BEHIND_SECONDS)
            self._writing = 1
            try:
                await self.write_now()
            finally:
                self._writing = 0

    async def write_now(self, patience: float = float("inf")) -> None:
        """Write what waits."""
        from tidemill.store import content

        database = await self._opened()
        removed, self._removed = self._removed, {}
        for identity, owner in removed.items():
            work = partial(content.remove, owner=owner, identity=identity)
            await database.write(work, patience)
        while self._waiting:
            _, entry = self._waiting.popitem(last=False)
            try:
                await database.write(await asyncio.to_thread(self._work, entry), patience)
            except TidemillError:
                self._waiting.setdefault(entry.id, entry)
                raise
            if isinstance(entry, Conversation):
                self._known[entry.id] = {name: i for i, name in enumerate(entry.items)}

    def _work(self, entry: Entry) -> Callable[[Any], None]:
        if isinstance(entry, Conversation):
            return self._conversation_work(entry)
        return self._response_work(entry)

    def _response_work(self, entry: StoredResponse) -> Callable[[Any], None]:
        from tidemill.store import content

        assert entry.output is not None
        links = [self._link_row(entry, link) for link in entry.output.chain()]
        row = content.ResponseRow(
            entry.id,
            entry.owner,
            entry.team,
            int(entry.response["created_at"]),
            entry.given.identity,
            entry.output.identity,
            self._seal("response", entry.owner, entry.id, entry.response),
        )
        return partial(content.save_response, row=row, links=links[::-1])

    def _link_row(self, entry: StoredResponse, link: Link) -> LinkRow:
        from tidemill.store.content import LinkRow

        link.identity = link.identity or new_id("link")
        before = link.before
        if before is not None:
            before.identity = before.identity or new_id("link")
        return LinkRow(
            link.identity,
            entry.owner,
            None if before is None else before.identity,
            int(wall()),
            self._seal("link", entry.owner, link.identity, link.items),
        )

    def _conversation_work(self, entry: Conversation) -> Callable[[Any], None]:
        from tidemill.store import content

        known = self._known.get(entry.id, {})
        items = [
            content.ItemRow(name, i, self._seal("item", entry.owner, f"{entry.id}/{name}", item))
            for i, (name, item) in enumerate(list(entry.items.items()))
            if known.get(name) != i
        ]
        row = content.ConversationRow(
            entry.id,
            entry.owner,
            entry.team,
            entry.created,
            int(wall()),
            self._seal("conversation", entry.owner, entry.id, entry.metadata),
        )
        gone = [name for name in known if name not in entry.items]
        return partial(content.save_conversation, row=row, items=items, gone=gone)

    def _seal(self, kind: str, owner: str, identity: str, value: Any) -> bytes:
        return self._cipher.encrypt(msgspec.json.encode(value), f"{kind}\0{owner}\0{identity}")

    def _open(self, kind: str, owner: str, identity: str, data: bytes) -> Any:
        return msgspec.json.decode(self._cipher.decrypt(data, f"{kind}\0{owner}\0{identity}"))

    # -- reading -----------------------------------------------------------------------------

    async def load(self, owner: str, identity: str) -> Entry | None:
        """An entry of an owner.

        Raises:
            DatabaseUnavailable: the database does not answer.
            Undecipherable: it cannot be read.
        """
        from tidemill.store import content

        if identity in self._removed:
            return None
        database = await self._opened()
        work = partial(content.response, owner=owner, identity=identity)
        row = await database.read(work)
        if row is not None:
            rows = await database.read(partial(content.chain, owner=owner, last=row.output))
            return await asyncio.to_thread(self._response, row, rows)
        found = await database.read(partial(content.conversation, owner=owner, identity=identity))
        if found is None:
            return None
        return await asyncio.to_thread(self._conversation, *found)

    def _response(self, row: ResponseRow, rows: list[LinkRow]) -> StoredResponse:
        links: dict[str, Link] = {}
        before: Link | None = None
        for one in reversed(rows):
            before = Link(self._open("link", row.owner, one.id, one.items), before)
            before.identity = one.id
            links[one.id] = before
        response = self._open("response", row.owner, row.id, row.response)
        entry = StoredResponse(row.owner, response, links[row.given], links[row.output])
        entry.team = row.team
        entry.size = len(row.response)
        return entry

    def _conversation(self, row: Any, items: list[ItemRow]) -> Conversation:
        metadata = self._open("conversation", row.owner, row.id, row.metadata)
        entry = Conversation(row.owner, row.id, row.created, metadata, team=row.team)
        for one in items:
            place = f"{row.id}/{one.item_id}"
            entry.items[one.item_id] = self._open("item", row.owner, place, one.item)
            entry.size += len(one.item)
        self._known[row.id] = {one.item_id: one.number for one in items}
        return entry

    async def close(self) -> None:
        """Write what waits, if the database answers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._waiting or self._removed:
            await self.write_now(patience=1.0)


class ArchivedStore(MemoryStore):
    """A `Store` in memory whose entries are archived.

    Args:
        bound: of the bytes in memory.
        archive: of its entries.
    """

    def __init__(self, bound: int, archive: Archive) -> None:
        super().__init__(bound)
        self._archive = archive

    def put(self, entry: Entry) -> None:
        """See `Store`."""
        super().put(entry)
        if isinstance(entry, Conversation):
            self._archive.save(entry)

    def restore(self, entry: Entry) -> None:
        """Take an entry from the archive."""
        super().put(entry)

    def changed(self, entry: Conversation) -> None:
        """See `Store`."""
        super().changed(entry)
        self._archive.save(entry)

    def complete(self, entry: StoredResponse, output: list[dict[str, Any]]) -> None:
        """See `Store`."""
        super().complete(entry, output)
        if entry.response["status"] in ENDED:
            self._archive.save(entry)

    def remove(self, entry: Entry) -> None:
        """See `Store`."""
        super().remove(entry)
        self._archive.remove(entry)
