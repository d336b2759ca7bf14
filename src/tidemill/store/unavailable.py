"""The error of a database that does not answer. Imports nothing that a start would notice."""

from __future__ import annotations

from tidemill.base.errors import ErrorKind, TidemillError


class DatabaseUnavailable(TidemillError):
    """The database does not answer; the same call may succeed later.

    Args:
        shown: the database, without password.
        cause: in one line.
    """

    def __init__(self, shown: str, cause: str) -> None:
        super().__init__(
            ErrorKind.DATABASE,
            f"the database {shown} does not answer: {cause}",
            param="database",
            retryable=True,
        )
