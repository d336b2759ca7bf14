"""Where responses and conversations are kept: an interface, and an implementation in memory.

What is kept belongs to a principal (its `client_id`); nobody else finds it. Memory is bounded:
where it runs out, the oldest of the principal that holds most is forgotten. Responses that continue
others share their items, which are counted once and kept as long as one of them is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

Item = dict[str, Any]


class Link:
    """Items that were added at once, behind those of another link.

    Attributes:
        items: in order, each with an id.
        before: what precedes them.
        size: bytes of their JSON text.
        holders: entries and later links that are kept and need it (`MemoryStore`).
        identity: in the archive; empty: it has not been there.
    """

    __slots__ = ("before", "holders", "identity", "items", "size")

    def __init__(self, items: list[Item], before: Link | None = None) -> None:
        self.items = items
        self.before = before
        self.size = len(msgspec.json.encode(items))
        self.holders = 0
        self.identity = ""

    def chain(self) -> Iterator[Link]:
        """This link and those before it, the latest first."""
        link: Link | None = self
        while link is not None:
            yield link
            link = link.before

    def all_items(self) -> list[Item]:
        """The items of the whole chain in order."""
        return [item for link in reversed(list(self.chain())) for item in link.items]


@dataclass(slots=True, eq=False)
class StoredResponse:
    """A response and what it was made from.

    Attributes:
        owner: `client_id` of its principal.
        response: the object.
        given: its input and everything before.
        output: its output items behind `given`; None as long as it has not ended.
        size: bytes of the object and of what else is kept for it (`Store.resize`).
        team: id of the principal's team; empty: none.
    """

    owner: str
    response: dict[str, Any]
    given: Link
    output: Link | None = None
    size: int = 0
    team: str = ""

    @property
    def id(self) -> str:
        """Its id."""
        identity: str = self.response["id"]
        return identity


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation and its items.

    Attributes:
        owner: `client_id` of its principal.
        id, created, metadata: as in the API.
        items: by id, in order.
        size: bytes of their JSON text.
        team: id of the principal's team; empty: none.
    """

    owner: str
    id: str
    created: int
    metadata: dict[str, str]
    items: dict[str, Item] = field(default_factory=dict)
    size: int = 0
    team: str = ""


Entry = StoredResponse | Conversation


@dataclass(slots=True)
class Recent:
    """The latest response of a WebSocket's connection, stored or not.

    Attributes:
        entry: what is kept of it.
    """

    entry: StoredResponse | None = None

    def find(self, identity: str) -> StoredResponse | None:
        """The response of that id, if it is this one."""
        return self.entry if self.entry is not None and self.entry.id == identity else None

    def keep(self, entry: StoredResponse, output: list[dict[str, Any]]) -> None:
        """A response has ended."""
        if entry.output is None:
            entry.output = Link(output, entry.given)
        self.entry = entry

    def forget(self, identity: object) -> None:
        """What continued it has failed: what it was is not certain to the client any more."""
        if self.entry is not None and self.entry.id == identity:
            self.entry = None


class Store(Protocol):
    """What keeps responses and conversations.

    Methods take the owner and find nothing of others. They do not wait: what is slow writes behind.
    """

    def put(self, entry: Entry) -> None:
        """Keep an entry; one of the same id is replaced."""

    def resize(self, entry: Entry) -> None:
        """Count an entry anew whose size has changed."""

    def changed(self, entry: Conversation) -> None:
        """Keep a conversation in its present state."""

    def response(self, owner: str, identity: str) -> StoredResponse | None:
        """A response of an owner."""

    def conversation(self, owner: str, identity: str) -> Conversation | None:
        """A conversation of an owner."""

    def items(self, owner: str, identities: Collection[str]) -> dict[str, Item]:
        """Items of any responses and conversations of an owner, by id, as far as known."""

    def complete(self, entry: StoredResponse, output: list[Item]) -> None:
        """Add the output items of a response that has ended, if it is still kept."""

    def restore(self, entry: Entry) -> None:
        """Keep an entry again that was forgotten."""

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""


class MemoryStore:
    """A `Store` in memory.

    Args:
        bound: of all bytes.

    Attributes:
        total: bytes held.
    """

    def __init__(self, bound: int) -> None:
        self.total = 0
        self._bound = bound
        self._held: dict[str, int] = {}  # by owner
        self._entries: dict[str, OrderedDict[str, Entry]] = {}  # by owner; the oldest first
        self._sizes: dict[int, int] = {}  # counted, by id() of an entry

    def put(self, entry: Entry) -> None:
        """Keep an entry; see `Store`."""
        mine = self._entries.setdefault(entry.owner, OrderedDict())
        if mine.get(entry.id) is not entry:
            if (known := mine.get(entry.id)) is not None:
                self._forget(known)
                mine = self._entries.setdefault(entry.owner, OrderedDict())
            mine[entry.id] = entry
            self._sizes[id(entry)] = 0
            if isinstance(entry, StoredResponse):
                self._hold(entry.owner, _end(entry))
        self.resize(entry)

    def complete(self, entry: StoredResponse, output: list[Item]) -> None:
        """Add the output items of a response that has ended, if it is still kept."""
        link = Link(output, entry.given)
        entry.output = link
        if id(entry) in self._sizes:
            self._hold(entry.owner, link)
            self._let_go(entry.owner, entry.given)  # the new link holds it
            self.resize(entry)

    def resize(self, entry: Entry) -> None:
        """Count an entry anew; see `Store`."""
        counted = self._sizes.get(id(entry))
        if counted is None:
            return
        self._sizes[id(entry)] = entry.size
        self._count(entry.owner, entry.size - counted)
        while self.total > self._bound and self._evict():
            pass

    def response(self, owner: str, identity: str) -> StoredResponse | None:
        """A response of an owner."""
        mine = self._entries.get(owner)
        found = None if mine is None else mine.get(identity)
        return found if isinstance(found, StoredResponse) else None

    def conversation(self, owner: str, identity: str) -> Conversation | None:
        """A conversation of an owner; it is young again."""
        mine = self._entries.get(owner)
        found = None if mine is None else mine.get(identity)
        if mine is None or not isinstance(found, Conversation):
            return None
        mine.move_to_end(identity)
        return found

    def items(self, owner: str, identities: Collection[str]) -> dict[str, Item]:
        """Items of an owner by id, as far as they are known; one pass over what is kept."""
        found: dict[str, Item] = {}
        seen: set[int] = set()
        for entry in self._entries.get(owner, OrderedDict()).values():
            if isinstance(entry, Conversation):
                found |= {i: entry.items[i] for i in identities if i in entry.items}
                continue
            for link in _end(entry).chain():
                if id(link) in seen:
                    break
                seen.add(id(link))
                found |= {i["id"]: i for i in link.items if i.get("id") in identities}
        return found

    def restore(self, entry: Entry) -> None:
        """Keep an entry again that was forgotten."""
        self.put(entry)

    def changed(self, entry: Conversation) -> None:
        """Keep a conversation in its present state."""
        self.resize(entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        counted = self._sizes.pop(id(entry), None)
        if counted is None:
            return
        mine = self._entries[entry.owner]
        del mine[entry.id]
        if not mine:
            del self._entries[entry.owner]
        if isinstance(entry, StoredResponse):
            self._let_go(entry.owner, _end(entry))
        self._count(entry.owner, -counted)

    def _evict(self) -> bool:
        """Forget the oldest entry of the owner that holds most."""
        owner = max(self._held, key=self._held.__getitem__, default=None)
        if owner is None or owner not in self._entries:
            return False
        self._forget(next(iter(self._entries[owner].values())))
        return True

    def _hold(self, owner: str, link: Link) -> None:
        held: Link | None = link
        while held is not None:
            held.holders += 1
            if held.holders > 1:
                return  # what precedes it is held by it
            self._count(owner, held.size)
            held = held.before

    def _let_go(self, owner: str, link: Link) -> None:
        while True:
            link.holders -= 1
            if link.holders:
                return
            self._count(owner, -link.size)
            if link.before is None:
                return
            link = link.before

    def _count(self, owner: str, size: int) -> None:
        self.total += size
        held = self._held.get(owner, 0) + size
        if held:
            self._held[owner] = held
        else:
            self._held.pop(owner, None)


def _end(entry: StoredResponse) -> Link:
    """The latest link that a response holds."""
    return entry.given if entry.output is None else entry.output
