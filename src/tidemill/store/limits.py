"""Limits of single subjects: set, listed, read by servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, delete, select

from tidemill.contract.quotas import Level, Limit, Limits, merged
from tidemill.store.tables.quotas import LIMITS
from tidemill.store.tables.settings import CHANGES
from tidemill.store.upsert import upsert

CHANGED = "limits"
"""The counter by which servers notice changes."""

Subject = tuple[Level, str]


def set_limits(
    connection: Connection, subject: Subject, limits: Sequence[Limit], *, replace: bool = False
) -> Limits:
    """Set limits of a subject.

    Args:
        connection: in a writing transaction.
        subject: whose.
        limits: an amount of None lifts a default.
        replace: the others that it has are removed.

    Returns:
        All limits that it has now.
    """
    level, name = subject
    of = (LIMITS.c.level == level.value, LIMITS.c.subject == name)
    if replace:
        connection.execute(delete(LIMITS).where(*of))
    rows = [
        {
            **{"level": level.value, "subject": name, "measure": limit.measure},
            **{"soft": limit.soft, "amount": limit.amount},
        }
        for limit in limits
    ]
    upsert(connection, LIMITS, rows, set_=["amount"])
    _changed(connection)
    return read_limits(connection).get(subject, ())


def remove_limits(
    connection: Connection, subject: Subject, names: Sequence[tuple[str, bool]]
) -> None:
    """Remove limits of a subject, by measure and softness: its level's defaults count again."""
    for measure, soft in names:
        connection.execute(
            delete(LIMITS).where(
                *(LIMITS.c.level == subject[0].value, LIMITS.c.subject == subject[1]),
                *(LIMITS.c.measure == measure, LIMITS.c.soft == soft),
            )
        )
    _changed(connection)


def read_limits(connection: Connection) -> Mapping[Subject, Limits]:
    """All limits of all subjects."""
    found: dict[Subject, list[Limit]] = {}
    for row in connection.execute(select(LIMITS)):
        limit = Limit(row.measure, row.amount, row.soft)
        found.setdefault((Level(row.level), row.subject), []).append(limit)
    return {subject: merged(limits) for subject, limits in found.items()}


def read_version(connection: Connection) -> int:
    """The number that differs once a limit has changed."""
    query = select(CHANGES.c.version).where(CHANGES.c.name == CHANGED)
    return connection.execute(query).scalar() or 0


def _changed(connection: Connection) -> None:
    upsert(connection, CHANGES, [{"name": CHANGED, "version": 1}], add=["version"])
