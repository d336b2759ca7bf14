"""Explanations in the database."""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemill.store.database import Database
from tidemill.store.explanations import PRUNED_AT_ONCE, add, find, names, prune, row_of
from tidemill.store.location import Location


def document(name: str, at: float, answer: str | None = None) -> dict[str, Any]:
    return {"id": name, "answer_id": answer, "at": at, "phases": [{"name": "read", "seconds": 0.5}]}


async def test_the_latest_is_found_by_either_id_and_the_old_are_removed(location: Location) -> None:
    database = Database(location)
    await database.open()
    try:
        documents = [
            document("a", 1.0, "cmpl-1"), document("a", 3.0, "cmpl-2"), document("b", 2.0),
        ]  # fmt: skip
        await database.write(partial(add, rows=[row_of(one) for one in documents]))
        for name, found in (("a", 1), ("cmpl-1", 0), ("cmpl-2", 1), ("b", 2)):
            assert await database.read(partial(find, name=name)) == documents[found]
        assert await database.read(partial(find, name="")) is None
        for start, ids in (("cmpl-", ["cmpl-1", "cmpl-2"]), ("a", ["a"]), ("A", []), ("cmpl_", [])):
            assert await database.read(partial(names, start=start, most=9)) == ids
        assert len(await database.read(partial(names, start="cmpl", most=1))) == 1
        assert await database.write(partial(prune, before=2500)) == 2
        assert await database.read(partial(find, name="b")) is None
        assert await database.read(partial(find, name="a")) == documents[1]
        many = [row_of(document(f"m{i}", 1.0)) for i in range(PRUNED_AT_ONCE + 3)]
        await database.write(partial(add, rows=many))
        assert await database.write(partial(prune, before=2000)) == PRUNED_AT_ONCE
        assert await database.write(partial(prune, before=2000)) == 3
    finally:
        await database.close()
