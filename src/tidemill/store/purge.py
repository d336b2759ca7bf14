"""Removing everything that one subject said and was answered; what is left is a receipt."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.store import audit, content
from tidemill.store.location import Location
from tidemill.store.tables.batches import BATCH_LINES, BATCHES, FILE_CHUNKS, FILES
from tidemill.store.tables.identity import KEYS, USERS


def forget(location: Location) -> bool:
    """Empty SQLite's log of changes, in which removed rows are still readable.

    Returns:
        False: a reader was in the way; the log is emptied when SQLite next can.
    """
    if location.path is None:
        return True
    connection = sqlite3.connect(location.path, timeout=10)
    try:
        [(busy, _, _)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()
    return not busy


def owners_of(connection: Connection, subject: str) -> list[str]:
    """The owners of content that a subject stands for.

    Args:
        connection: in a transaction.
        subject: a key's name or id, a user's name or id (all its keys), or an owner as stored
            (``key:NAME``, ``addr:ADDRESS``).

    Raises:
        TidemillError: kind NOT_FOUND: nothing of that name has keys or content.
    """
    by_user = select(KEYS.c.name).join(USERS, KEYS.c.user_id == USERS.c.id)
    names = {
        *connection.execute(
            select(KEYS.c.name).where((KEYS.c.name == subject) | (KEYS.c.id == subject))
        ).scalars(),
        *connection.execute(
            by_user.where((USERS.c.name == subject) | (USERS.c.id == subject))
        ).scalars(),
    }
    owners = {f"key:{name}" for name in names}
    for candidate in (subject, f"key:{subject}"):
        if _holds(connection, candidate):
            owners.add(candidate)
    if not owners:
        raise TidemillError(
            ErrorKind.NOT_FOUND,
            f"{subject!r} is no key, no user and no owner of stored content",
            param="subject",
        )
    return sorted(owners)


def _holds(connection: Connection, owner: str) -> bool:
    for table in (BATCHES, FILES):
        if connection.execute(select(table.c.id).where(table.c.owner == owner).limit(1)).first():
            return True
    return any(content.counted(connection, [owner]).values())


def purge(connection: Connection, actor: str, owners: Sequence[str]) -> dict[str, int]:
    """Remove the responses, conversations, files and batches of owners, and note it in the audit
    log; returns how many of each.

    Usage and audit have no content and stay.
    """
    if connection.dialect.name == "sqlite":
        # What is removed is overwritten; `forget` has it overwritten in the log of changes, too.
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
    found = {"responses": 0, "conversations": 0, "files": 0, "batches": 0}
    for owner in owners:
        for name, count in content.remove_owner(connection, owner).items():
            found[name] += count
        mine = select(FILES.c.id).where(FILES.c.owner == owner)
        connection.execute(delete(FILE_CHUNKS).where(FILE_CHUNKS.c.file_id.in_(mine)))
        found["files"] += connection.execute(delete(FILES).where(FILES.c.owner == owner)).rowcount
        mine = select(BATCHES.c.id).where(BATCHES.c.owner == owner)
        connection.execute(delete(BATCH_LINES).where(BATCH_LINES.c.batch_id.in_(mine)))
        gone = delete(BATCHES).where(BATCHES.c.owner == owner)
        found["batches"] += connection.execute(gone).rowcount
    audit.record(connection, actor, "content.purge", ",".join(owners)[:128], found)
    return found
