"""Responses and conversations in the database; who may see them, and for how long.

Functions of one transaction each; see `Database`. Texts are encrypted before they come here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, delete, exists, func, or_, select

from tidemill.store.tables.content import CONVERSATIONS, ITEMS, LINKS, RESPONSES, RETENTION
from tidemill.store.upsert import upsert

EVERY_TEAM = ""
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Items behind those of another link; `items` is encrypted."""

    id: str
    owner: str
    before: str | None
    created: int
    items: bytes


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A response that has ended; `response` is encrypted."""

    id: str
    owner: str
    team: str
    created: int
    given: str
    output: str
    response: bytes


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation without its items; `metadata` is encrypted."""

    id: str
    owner: str
    team: str
    created: int
    changed: int
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item of a conversation; `item` is encrypted."""

    item_id: str
    number: int
    item: bytes


def _values(row: LinkRow | ResponseRow | ConversationRow | ItemRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__slots__}


def save_response(connection: Connection, row: ResponseRow, links: Sequence[LinkRow]) -> None:
    """Keep a response and those of its links that are not kept yet, the earliest first."""
    upsert(connection, LINKS, [_values(link) for link in links])
    upsert(connection, RESPONSES, [_values(row)], set_=("response", "given", "output"))


def save_conversation(
    connection: Connection,
    row: ConversationRow,
    items: Sequence[ItemRow],
    gone: Collection[str] = (),
) -> None:
    """Keep a conversation, with items that are new or changed, and without those that are gone."""
    upsert(connection, CONVERSATIONS, [_values(row)], set_=("changed", "metadata"))
    upsert(
        connection,
        ITEMS,
        [{"conversation_id": row.id, **_values(item)} for item in items],
        set_=("number", "item"),
    )
    if gone:
        connection.execute(
            delete(ITEMS).where(ITEMS.c.conversation_id == row.id, ITEMS.c.item_id.in_(gone))
        )


def response(connection: Connection, owner: str, identity: str) -> ResponseRow | None:
    """A response of an owner."""
    columns = [RESPONSES.c[name] for name in ResponseRow.__slots__]
    query = select(*columns).where(RESPONSES.c.id == identity, RESPONSES.c.owner == owner)
    row = connection.execute(query).first()
    return None if row is None else ResponseRow(*row)


def chain(connection: Connection, owner: str, last: str) -> list[LinkRow]:
    """A link and all before it, the latest first."""
    columns = [LINKS.c[name] for name in LinkRow.__slots__]
    found: list[LinkRow] = []
    identity: str | None = last
    while identity is not None:
        query = select(*columns).where(LINKS.c.id == identity, LINKS.c.owner == owner)
        row = connection.execute(query).first()
        if row is None:
            break
        found.append(LinkRow(*row))
        identity = found[-1].before
    return found


def conversation(
    connection: Connection, owner: str, identity: str
) -> tuple[ConversationRow, list[ItemRow]] | None:
    """A conversation of an owner, and its items in order."""
    columns = [CONVERSATIONS.c[name] for name in ConversationRow.__slots__]
    query = select(*columns).where(CONVERSATIONS.c.id == identity, CONVERSATIONS.c.owner == owner)
    row = connection.execute(query).first()
    if row is None:
        return None
    items = select(*(ITEMS.c[name] for name in ItemRow.__slots__))
    items = items.where(ITEMS.c.conversation_id == identity).order_by(ITEMS.c.number)
    return ConversationRow(*row), [ItemRow(*item) for item in connection.execute(items)]


def conversations(
    connection: Connection, owner: str, prefix: str, limit: int
) -> list[ConversationRow]:
    """Conversations of an owner whose ids have a prefix, the one that changed last first."""
    columns = [CONVERSATIONS.c[name] for name in ConversationRow.__slots__]
    query = select(*columns).where(
        CONVERSATIONS.c.owner == owner, CONVERSATIONS.c.id.startswith(prefix, autoescape=True)
    )
    query = query.order_by(CONVERSATIONS.c.changed.desc(), CONVERSATIONS.c.id).limit(limit)
    return [ConversationRow(*row) for row in connection.execute(query)]


def owner_of(connection: Connection, identity: str) -> str | None:
    """Whose a conversation is; None: there is none."""
    query = select(CONVERSATIONS.c.owner).where(CONVERSATIONS.c.id == identity)
    found: str | None = connection.execute(query).scalar()
    return found


def remove(connection: Connection, owner: str, identity: str) -> int:
    """Remove a response or a conversation of an owner; returns how many it were."""
    count = 0
    for table in (RESPONSES, CONVERSATIONS):
        condition = (table.c.id == identity) & (table.c.owner == owner)
        count += _remove(connection, table, condition)
    if count:
        _sweep_links(connection, owner)
    return count


def remove_owner(connection: Connection, owner: str) -> dict[str, int]:
    """Remove everything of an owner; returns how many rows of each kind."""
    found = {
        "responses": _remove(connection, RESPONSES, RESPONSES.c.owner == owner),
        "conversations": _remove(connection, CONVERSATIONS, CONVERSATIONS.c.owner == owner),
    }
    connection.execute(delete(LINKS).where(LINKS.c.owner == owner))
    return found


def _remove(connection: Connection, table: Table, condition: object) -> int:
    if table is CONVERSATIONS:
        chosen = select(CONVERSATIONS.c.id).where(condition)  # type: ignore[arg-type]
        connection.execute(delete(ITEMS).where(ITEMS.c.conversation_id.in_(chosen)))
    return connection.execute(delete(table).where(condition)).rowcount  # type: ignore[arg-type]


def _sweep_links(connection: Connection, owner: str | None) -> int:
    """Remove links that no response and no later link needs; returns how many."""
    later = LINKS.alias()
    needed = or_(
        exists().where(RESPONSES.c.given == LINKS.c.id),
        exists().where(RESPONSES.c.output == LINKS.c.id),
        exists().where(later.c.before == LINKS.c.id),
    )
    count = 0
    while True:
        unused = select(LINKS.c.id).where(~needed)
        if owner is not None:
            unused = unused.where(LINKS.c.owner == owner)
        gone = list(connection.execute(unused.limit(_AT_ONCE)).scalars())
        if not gone:
            return count
        count += connection.execute(delete(LINKS).where(LINKS.c.id.in_(gone))).rowcount


# -- retention -------------------------------------------------------------------------------


def retention(connection: Connection) -> dict[str, int]:
    """Seconds for which content is kept, by team id; "" for teams that are not in it."""
    query = select(RETENTION.c.team, RETENTION.c.seconds)
    return {team: seconds for team, seconds in connection.execute(query)}


def set_retention(connection: Connection, team: str, seconds: int | None) -> None:
    """Set for how long content of a team ("": of all others) is kept; None: as of all others."""
    if seconds is None:
        connection.execute(delete(RETENTION).where(RETENTION.c.team == team))
    else:
        upsert(connection, RETENTION, [{"team": team, "seconds": seconds}], set_=("seconds",))


def expire(connection: Connection, now: int) -> int:
    """Remove content that is older than its team's retention; returns how many it were."""
    rules = retention(connection)
    count = 0
    for team, seconds in rules.items():
        for table, time in ((RESPONSES, "created"), (CONVERSATIONS, "changed")):
            old = table.c[time] < now - seconds
            if team == EVERY_TEAM:
                old &= table.c.team.not_in([name for name in rules if name != EVERY_TEAM])
            else:
                old &= table.c.team == team
            count += _remove(connection, table, old)
    if count:
        _sweep_links(connection, None)
    return count


def counted(connection: Connection, owners: Iterable[str] | None = None) -> dict[str, int]:
    """Rows of each kind, of these owners or of all."""
    found = {}
    for name, table in (("responses", RESPONSES), ("conversations", CONVERSATIONS)):
        query = select(func.count()).select_from(table)
        if owners is not None:
            query = query.where(table.c.owner.in_(list(owners)))
        found[name] = int(connection.execute(query).scalar_one())
    return found
