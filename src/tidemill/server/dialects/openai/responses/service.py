"""What the routes of Responses and Conversations share: the store, and runs in the background."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.server.context import ServerContext
from tidemill.server.dialects.openai.responses.store import (
    Conversation,
    MemoryStore,
    Store,
    StoredResponse,
)
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.errors import reject
from tidemill.server.transport.detached import Detached
from tidemill.server.transport.sink import Data, Headers, Sink

if TYPE_CHECKING:
    from tidemill.server.dialects.openai.responses.archive import Archive

RESUME_SECONDS = 600.0
"""How long after its end the events of a background response can be read."""

EARLY_SECONDS = 0.25
"""A background response that is refused so soon is an error of the request that asked for it."""

MAX_RUNNING = 256
"""Background responses of one principal that have not ended."""

MAX_ID = 64

COUNTED_BYTES = 2**16
"""By so much a log grows before the store counts it."""


class Ending(Protocol):
    """How a response ends that does not end by itself."""

    def failed(self, error: Exception) -> dict[str, Any]:
        """The object of a response that failed before its first event."""

    def cancelled(self) -> tuple[dict[str, Any], bytes]:
        """The object of a response that was cancelled, and the event that says so."""


@dataclass(slots=True)
class Run:
    """One background response.

    Attributes:
        entry: what is kept of it.
        stream: its events.
        counted: bytes of its events that are counted in the entry's size.
    """

    entry: StoredResponse
    stream: Detached
    counted: int = 0


class _CountedSink:
    """Writes events to a run's log, whose growth counts in the store.

    A response that is forgotten for the memory of others has no events either: its generation ends.
    """

    def __init__(self, store: Store, run: Run, sink: Sink) -> None:
        self._store = store
        self._run = run
        self._sink = sink
        self._forgotten = False

    async def start(self, status: int, headers: Headers) -> None:
        """Begin."""
        await self._sink.start(status, headers)

    async def write(self, data: Data, *, more: bool = True) -> None:
        """Write events.

        Raises:
            TidemillError: kind RESOURCE, once.
        """
        await self._sink.write(data, more=more)
        run, store = self._run, self._store
        grown = run.stream.log.size - run.counted
        if grown < COUNTED_BYTES or self._forgotten:
            return
        run.counted += grown
        run.entry.size += grown
        store.resize(run.entry)
        if store.response(run.entry.owner, run.entry.id) is not run.entry:
            self._forgotten = True
            raise TidemillError(
                ErrorKind.RESOURCE,
                "the response was forgotten: the memory for stored responses is used up "
                "(max_stored_bytes)",
            )


class Service:
    """State of Responses and Conversations.

    Attributes:
        store: what is kept.
        archive: where it is kept as well; None: nowhere.
    """

    def __init__(self, context: ServerContext) -> None:
        self.archive: Archive | None = None
        self.store: Store = self._make_store(context)
        self._log_bytes = context.limits.max_stored_bytes // 8
        self._runs: dict[str, Run] = {}

    def _make_store(self, context: ServerContext) -> Store:
        bound, storage = context.limits.max_stored_bytes, context.storage
        if context.cipher is None or storage is None:
            return MemoryStore(bound)
        from tidemill.server.dialects.openai.responses.archive import Archive, ArchivedStore

        self.archive = Archive(storage.opened, context.cipher)
        storage.on_close.append(self.archive.close)
        return ArchivedStore(bound, self.archive)

    async def recall(self, owner: str, *identities: object) -> None:
        """Bring responses and conversations of an owner back from the archive, where memory does
        not have them.

        Raises:
            DatabaseUnavailable: the database does not answer.
        """
        if self.archive is None:
            return
        store = self.store
        for identity in identities:
            if not isinstance(identity, str) or not 0 < len(identity) <= MAX_ID:
                continue
            if store.response(owner, identity) or store.conversation(owner, identity):
                continue
            entry = await self.archive.load(owner, identity)
            if entry is not None:
                store.restore(entry)

    def run(self, owner: str, identity: str) -> Run | None:
        """A background response whose events are kept."""
        self._forget_old()
        found = self._runs.get(identity)
        return None if found is None or found.entry.owner != owner else found

    def found(self, owner: str, identity: str) -> StoredResponse:
        """A response.

        Raises:
            Rejection: 404.
        """
        found = self.store.response(owner, identity)
        if found is None:
            raise reject(
                404,
                f"there is no response {identity[:80]!r}; it was not stored, or it was deleted or "
                "forgotten",
                param="response_id",
            )
        return found

    def keep(self, entry: StoredResponse) -> None:
        """Keep a response in its present state, unless it was forgotten."""
        self._forget_old()
        run = self._runs.get(entry.id)
        if run is not None:
            if self.store.response(entry.owner, entry.id) is not entry:
                return
            run.counted = run.stream.log.size
        entry.size = len(msgspec.json.encode(entry.response)) + (run.counted if run else 0)
        self.store.put(entry)

    def end(self, entry: StoredResponse, response: dict[str, Any]) -> None:
        """Keep the final state of a response, with its output."""
        entry.response = response
        self.keep(entry)
        self.store.complete(entry, response["output"])

    def append(self, conversation: Conversation, items: list[dict[str, Any]]) -> None:
        """Add items to a conversation."""
        for item in items:
            known = conversation.items.get(item["id"])
            conversation.size -= 0 if known is None else len(msgspec.json.encode(known))
            conversation.size += len(msgspec.json.encode(item))
            conversation.items[item["id"]] = item
        self.store.changed(conversation)

    def start(self, entry: StoredResponse, answer: GeneratedAnswer, ending: Ending) -> Run:
        """Generate a response in the background.

        Args:
            entry: its first state.
            answer: writes its events.
            ending: what becomes of it where it does not end by itself.

        Raises:
            Rejection: 429, too many of them run.
        """
        self._forget_old()
        running = [r for r in self._runs.values() if r.stream.ended_at is None]
        if sum(r.entry.owner == entry.owner for r in running) >= MAX_RUNNING:
            raise reject(
                429,
                f"{MAX_RUNNING} background responses of this client have not ended; wait for one",
                code="overloaded",
                headers={"Retry-After": "1"},
            )
        run = Run(entry, Detached(self._log_bytes))
        self.keep(entry)
        self._runs[entry.id] = run
        run.stream.start(lambda sink: self._generate(run, sink, answer, ending))
        answer.record_until(run.stream)
        return run

    async def _generate(
        self, run: Run, sink: Sink, answer: GeneratedAnswer, ending: Ending
    ) -> None:
        entry = run.entry
        try:
            await answer.write_detached(_CountedSink(self.store, run, sink))
        except asyncio.CancelledError:
            if entry.response["status"] in ("queued", "in_progress"):
                response, event = ending.cancelled()
                await sink.write(event, more=False)
                self.end(entry, response)
            raise
        except Exception as error:
            self.end(entry, ending.failed(error))
            raise
        finally:
            if self.store.response(entry.owner, entry.id) is entry:
                self.keep(entry)  # the size of its log is known

    async def cancel(self, entry: StoredResponse) -> None:
        """End a background response; one that has ended stays as it is."""
        run = self._runs.get(entry.id)
        if run is not None:
            await run.stream.cancel()

    async def remove(self, entry: StoredResponse) -> None:
        """Forget a response, and end it."""
        await self.cancel(entry)
        self._runs.pop(entry.id, None)
        self.store.remove(entry)

    def _forget_old(self) -> None:
        """Forget the events of runs that ended long ago, or whose response is not kept."""
        now = monotonic()
        for identity, run in list(self._runs.items()):
            entry, ended = run.entry, run.stream.ended_at
            if ended is None:
                continue
            kept = self.store.response(entry.owner, identity) is entry
            if not kept or now - ended > RESUME_SECONDS:
                del self._runs[identity]
                entry.size -= run.counted
                self.store.resize(entry)


def service_of(context: ServerContext) -> Service:
    """The server's."""
    return context.kept(Service)
