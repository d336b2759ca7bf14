"""Carries administrative acts out: a transaction each, with the errors that people can act on."""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from tidemill.base.errors import bad_request
from tidemill.store.database import Database, T, Work


async def act(database: Database, work: Work[T]) -> T:
    """Run an act's transaction.

    Raises:
        TidemillError: of the act; BAD_REQUEST where another made the same at the same time.
    """
    try:
        return await database.write(work)
    except IntegrityError:
        raise bad_request(
            "name", "another was made with the same name at the same time; look, and try again"
        ) from None
