"""Files that clients upload: kept in the database in chunks, so that every server has them.

Functions of one transaction each; see `Database`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from tidemill.store.tables.batches import FILE_CHUNKS, FILES

CHUNK_BYTES = 2**20
"""Of one row, and so of one transaction of an upload."""

UPLOADING, READY = "uploading", "processed"
ABANDONED_SECONDS = 86400
"""After this time an upload that has not ended is removed."""


@dataclass(frozen=True, slots=True)
class File:
    """A file.

    Attributes:
        id, owner, purpose, filename, status: as stored.
        bytes: of its content.
        created, expires: seconds since 1970.
        batch_id: the batch whose lines are its content; None: it was uploaded.
    """

    id: str
    owner: str
    purpose: str
    filename: str
    status: str
    bytes: int
    created: int
    expires: int | None
    batch_id: str | None


def _file(row: RowMapping) -> File:
    values: Any = row
    return File(**{name: values[name] for name in File.__slots__})


def begin(connection: Connection, file: File) -> None:
    """Register an upload; `append` brings its content, `finish` makes it a file."""
    values = {name: getattr(file, name) for name in File.__slots__}
    connection.execute(insert(FILES).values(**values))


def append(connection: Connection, file_id: str, number: int, data: bytes) -> None:
    """Add the chunk of this number."""
    connection.execute(insert(FILE_CHUNKS).values(file_id=file_id, number=number, data=data))


def finish(connection: Connection, file: File) -> None:
    """The upload has ended; what was not known when it began is in `file`."""
    values = {name: getattr(file, name) for name in File.__slots__}
    connection.execute(update(FILES).where(FILES.c.id == file.id).values(**values))


def find(connection: Connection, owner: str, file_id: str) -> File | None:
    """A file of an owner."""
    query = select(FILES).where(
        FILES.c.id == file_id, FILES.c.owner == owner, FILES.c.status == READY
    )
    row = connection.execute(query).mappings().first()
    return None if row is None else _file(row)


def listed(
    connection: Connection,
    owner: str,
    *,
    purpose: str | None = None,
    after: str | None = None,
    limit: int = 100,
    ascending: bool = False,
) -> list[File]:
    """Files of an owner, the latest first unless `ascending`; at most `limit`, behind the file
    `after`."""
    query = select(FILES).where(FILES.c.owner == owner, FILES.c.status == READY)
    if purpose is not None:
        query = query.where(FILES.c.purpose == purpose)
    created, identity = FILES.c.created, FILES.c.id
    if after is not None:
        known = find(connection, owner, after)
        if known is not None:
            last = (created == known.created) & (
                (identity > known.id) if ascending else (identity < known.id)
            )
            beyond = (created > known.created) if ascending else (created < known.created)
            query = query.where(beyond | last)
    order = (created, identity) if ascending else (created.desc(), identity.desc())
    return [
        _file(row) for row in connection.execute(query.order_by(*order).limit(limit)).mappings()
    ]


def held(connection: Connection, owner: str) -> int:
    """Bytes of all uploads of an owner."""
    query = select(func.coalesce(func.sum(FILES.c.bytes), 0)).where(FILES.c.owner == owner)
    return int(connection.execute(query).scalar_one())


def chunk(connection: Connection, file_id: str, number: int) -> bytes | None:
    """A chunk of an upload; None behind its end."""
    query = select(FILE_CHUNKS.c.data).where(
        FILE_CHUNKS.c.file_id == file_id, FILE_CHUNKS.c.number == number
    )
    return connection.execute(query).scalar()


def remove(connection: Connection, file_id: str) -> None:
    """Remove a file; of a batch's, the lines stay with the batch."""
    connection.execute(delete(FILE_CHUNKS).where(FILE_CHUNKS.c.file_id == file_id))
    connection.execute(delete(FILES).where(FILES.c.id == file_id))


def remove_old(connection: Connection, now: int) -> int:
    """Remove expired files and abandoned uploads; returns how many."""
    gone = (FILES.c.expires <= now) | (
        (FILES.c.status == UPLOADING) & (FILES.c.created < now - ABANDONED_SECONDS)
    )
    identities = list(connection.execute(select(FILES.c.id).where(gone)).scalars())
    for identity in identities:
        remove(connection, identity)
    return len(identities)
