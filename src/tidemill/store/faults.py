"""What an error of the database means for the transaction that met it."""

from __future__ import annotations

import asyncio
from enum import Enum

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout


class Fault(Enum):
    """What to do about an error."""

    CONFLICT = "conflict"  # rolled back because of a concurrent transaction: run it again
    GONE = "gone"  # the database does not answer: run it again when it is back
    OWN = "own"  # the statement's own: nothing helps


# SQLSTATEs: serialization failure, deadlock; classes: connection, resources, operator intervention.
_CONFLICTS = ("40001", "40P01", "55P03")
_GONE_CLASSES = ("08", "53", "57", "58")
_BUSY = ("database is locked", "database table is locked", "database schema has changed")

_DAMAGED = ("file is not a database", "disk image is malformed", "malformed database schema")
"""A file that does not answer until somebody has restored it."""


def fault_of(error: BaseException) -> Fault:
    """The kind of an error that a transaction raised."""
    if isinstance(error, (OSError, asyncio.TimeoutError, PoolTimeout)):
        return Fault.GONE
    if not isinstance(error, DBAPIError):
        # asyncpg's errors while connecting are not always translated.
        return _by_state(error) if hasattr(error, "sqlstate") else Fault.OWN
    if error.connection_invalidated:
        return Fault.GONE
    found = _by_state(error.orig) if error.orig is not None else Fault.OWN
    if found is not Fault.OWN or getattr(error.orig, "sqlstate", None):
        return found
    text = str(error.orig)
    if any(word in text for word in _DAMAGED):
        return Fault.GONE
    if any(word in text for word in _BUSY):
        return Fault.CONFLICT
    if isinstance(error, (OperationalError, InterfaceError)):
        # SQLite has no states; what is left is of the statement, or of the file.
        return Fault.OWN if _of_the_statement(text) else Fault.GONE
    return Fault.OWN


def _of_the_statement(text: str) -> bool:
    return text.startswith(
        ("no such ", "near ", "too many ", "table ", "index ", "duplicate column")
    )


def _by_state(error: BaseException) -> Fault:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    if state in _CONFLICTS:
        return Fault.CONFLICT
    return Fault.GONE if state[:2] in _GONE_CLASSES else Fault.OWN


def cause_of(error: BaseException) -> str:
    """The cause in one line, without the statement and its values."""
    while isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
