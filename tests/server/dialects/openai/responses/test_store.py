"""The store counts shared items once, forgets the oldest of who holds most, and holds its bound."""

from __future__ import annotations

import random
from typing import Any

from tidemill.server.dialects.openai.responses.store import (
    Conversation,
    Link,
    MemoryStore,
    StoredResponse,
)


def _item(identity: str, size: int = 100) -> dict[str, Any]:
    return {"id": identity, "text": "x" * size}


def _entry(owner: str, identity: str, link: Link) -> StoredResponse:
    return StoredResponse(owner, {"id": identity, "status": "completed"}, link, size=10)


def test_shared_items_count_once_and_live_as_long_as_one_needs_them() -> None:
    store = MemoryStore(10**6)
    first = _entry("a", "r1", Link([_item("i1")]))
    store.put(first)
    store.complete(first, [_item("o1")])
    assert first.output is not None
    alone = store.total
    second = _entry("a", "r2", Link([_item("i2")], first.output))
    store.put(second)
    store.complete(second, [_item("o2")])
    assert store.total == 2 * alone
    assert [i["id"] for i in second.given.all_items()] == ["i1", "o1", "i2"]
    store.remove(first)
    assert store.total == 2 * alone - first.size
    assert set(store.items("a", {"i1", "o2", "none"})) == {"i1", "o2"}
    assert store.items("b", {"i1"}) == {}
    store.remove(second)
    assert store.total == 0 and store.items("a", {"i1"}) == {}


def test_the_oldest_of_who_holds_most_is_forgotten() -> None:
    store = MemoryStore(3000)
    store.put(_entry("small", "s", Link([_item("s")])))
    for number in range(30):
        store.put(_entry("large", f"r{number}", Link([_item(f"i{number}", 300)])))
        assert store.total <= 3000
    assert store.response("small", "s") is not None
    assert store.response("large", "r29") is not None and store.response("large", "r0") is None
    store.put(_entry("huge", "h", Link([_item("h", 5000)])))
    assert store.response("huge", "h") is None  # it alone exceeds the bound


def test_any_sequence_keeps_the_count_exact() -> None:
    draw = random.Random(7)
    store, alive = MemoryStore(20_000), {}
    for number in range(3000):
        owner = draw.choice("ab")
        known = [e for e in alive.values() if store.response(e.owner, e.id) is e]
        before = draw.choice([e for e in known if e.owner == owner] or [None])
        link = Link([_item(f"i{number}", draw.randrange(400))], before and before.output)
        entry = _entry(owner, f"r{number}", link)
        store.put(entry)
        store.complete(entry, [_item(f"o{number}", draw.randrange(400))])
        alive[entry.id] = entry
        if known and draw.random() < 0.3:
            store.remove(draw.choice(known))
        conversation = Conversation(owner, f"c{number % 5}", 0, {}, size=draw.randrange(300))
        store.put(conversation)
        kept = [e for e in alive.values() if store.response(e.owner, e.id) is e]
        alive = {e.id: e for e in kept}
        links = {id(part): part.size for e in kept for part in (e.output or e.given).chain()}
        talks = [c.size for o in "ab" for i in range(5) if (c := store.conversation(o, f"c{i}"))]
        assert store.total == sum(links.values()) + 10 * len(kept) + sum(talks) <= 20_000
