"""Commands that read or change the database, beside a running server or without one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from tidemill.base.errors import config_error
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from tidemill.store.database import Database
    from tidemill.store.location import Location

T = TypeVar("T")

DATABASE = option(
    None,
    help="As of `tidemill serve`; default: tidemill.db in TIDEMILL_HOME.",
    envvar="TIDEMILL_DATABASE",
)


def actor_name() -> str:
    """Who uses this command line, for the audit log."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli:unknown"


def with_database(url: str | None, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run `work` with the database, whose audit log it may write.

    Args:
        url: as of `--database`.

    Raises:
        TidemillError: kind CONFIG, or the database does not answer.
    """
    import asyncio

    from tidemill.library.home import default_home
    from tidemill.store.audit import seal_with
    from tidemill.store.database import Database
    from tidemill.store.sealing import open_sealer

    location = located(url)

    async def run() -> T:
        seal_with(open_sealer(default_home()))
        database = Database(location)
        await database.open()
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


def located(url: str | None) -> Location:
    """The database of `--database`.

    Raises:
        TidemillError: kind CONFIG: there is none.
    """
    from tidemill.library.home import default_home
    from tidemill.store.location import location_of

    location = location_of(url, default_home())
    if location is None:
        raise config_error("database", "--database none: this command needs a database")
    return location
