"""Content in the database: chains of links, retention by team, removal."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tidemill.store import content
from tidemill.store.content import ConversationRow, ItemRow, LinkRow, ResponseRow
from tidemill.store.database import Database
from tidemill.store.location import Location
from tidemill.store.tables.content import LINKS


def turn(number: int, before: str | None, *, owner: str = "a", team: str = "", at: int = 0) -> Any:
    """A response whose own items are behind those of `before`."""
    given = LinkRow(f"{owner}g{number}", owner, before, at, b"in")
    output = LinkRow(f"{owner}o{number}", owner, given.id, at, b"out")
    row = ResponseRow(f"{owner}r{number}", owner, team, at, given.id, output.id, b"x")
    return row, [given, output]


async def opened(location: Location) -> Database:
    database = Database(location)
    await database.open()
    return database


async def test_links_live_as_long_as_something_needs_them(location: Location) -> None:
    database = await opened(location)

    def work(connection: sa.Connection) -> None:
        def links() -> set[str]:
            return set(connection.execute(sa.select(LINKS.c.id)).scalars())

        for row, rows in (turn(1, None), turn(2, "ao1"), turn(3, "ao1"), turn(1, None, owner="b")):
            content.save_response(connection, row, rows)
            content.save_response(connection, row, rows)  # again changes nothing
        assert [link.id for link in content.chain(connection, "a", "ao2")] == [
            *("ao2", "ag2", "ao1", "ag1")
        ]
        assert content.response(connection, "b", "ar2") is None
        assert content.remove(connection, "b", "ar1") == 0
        assert content.remove(connection, "a", "ar1") == 1
        assert {"ao1", "ag1"} <= links()
        assert content.remove(connection, "a", "ar2") == 1
        assert "ao2" not in links() and "ao1" in links()
        assert content.remove(connection, "a", "ar3") == 1
        assert links() == {"bg1", "bo1"}
        assert content.remove_owner(connection, "b") == {"responses": 1, "conversations": 0}
        assert links() == set()

    await database.write(work)
    await database.close()


async def test_conversations_are_rows_by_item(location: Location) -> None:
    database = await opened(location)
    row = ConversationRow("c", "a", "t", 1, 1, b"m")

    def work(connection: sa.Connection) -> None:
        first = [ItemRow(f"i{i}", i, b"%d" % i) for i in range(5)]
        content.save_conversation(connection, row, first)
        content.save_conversation(connection, row, [ItemRow("i9", 9, b"9")], gone=["i2", "i3"])
        found = content.conversation(connection, "a", "c")
        assert found is not None
        assert [item.item_id for item in found[1]] == ["i0", "i1", "i4", "i9"]
        assert content.conversation(connection, "b", "c") is None

    await database.write(work)
    await database.close()


async def test_retention_by_team(location: Location) -> None:
    database = await opened(location)

    def work(connection: sa.Connection) -> None:
        for number, team in enumerate(("", "short", "long")):
            for at in (100, 900):
                row, rows = turn(number * 1000 + at, None, team=team, at=at)
                content.save_response(connection, row, rows)
            content.save_conversation(
                connection, ConversationRow(f"c{number}", "a", team, 100, 100, b""), []
            )
        assert content.expire(connection, 1000) == 0  # no rule, no end
        content.set_retention(connection, "short", 50)
        assert content.expire(connection, 1000) == 3
        content.set_retention(connection, content.EVERY_TEAM, 500)
        content.set_retention(connection, "long", 10_000)
        assert content.expire(connection, 1000) == 2
        assert content.counted(connection) == {"responses": 3, "conversations": 1}
        content.set_retention(connection, "long", None)
        assert content.retention(connection) == {"": 500, "short": 50}
        assert content.expire(connection, 1000) == 2

    await database.write(work)
    await database.close()
