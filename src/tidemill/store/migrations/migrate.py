"""Brings a database to a revision, under a lock that excludes other servers.

An empty database gets all tables at once and the newest revision's number, without alembic, whose
import costs 11 MiB; a test compares the result with that of the revisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from tidemill.base.errors import config_error
from tidemill.base.log import get_logger
from tidemill.store.schema import HEAD, VERSION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

log = get_logger(__name__)

FOLDER = Path(__file__).parent

# Any number that no other program takes for the same purpose.
_LOCK = 0x7469_6465

BASE = "base"
"""The revision of a database without tables."""


def revision_of(connection: Connection) -> str | None:
    """The database's revision; None: it has no table of this program."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def is_current(engine: Engine) -> bool:
    """Whether the database is at the newest revision; one SELECT."""
    with engine.connect() as connection:
        return revision_of(connection) == HEAD


def migrate(engine: Engine, target: str = HEAD) -> None:
    """Bring a database to the revision `target`, or to no tables at all ("base").

    All or nothing: both databases change their schema in transactions.

    Raises:
        TidemillError: kind CONFIG: the database is newer than this program, or not of it.
    """
    with _locked(engine) as connection:
        found = revision_of(connection)
        if found == target:
            return
        if found is None:
            _check_empty(connection)
            if target == HEAD:
                metadata().create_all(connection)
                _stamp(connection)
                return
        run_revisions(connection, found, target)
        log.warning("the database was migrated from revision %s to %s", found or "none", target)


@contextmanager
def _locked(engine: Engine) -> Iterator[Connection]:
    """A transaction that no other server's migration runs beside."""
    sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        if sqlite:
            # Tables are altered by being made anew, which references would forbid. Outside a
            # transaction: within one the pragma has no effect.
            _pragma(connection, "foreign_keys=OFF")
        try:
            with connection.execution_options(writing=True).begin():
                if not sqlite:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
                yield connection
                if sqlite:
                    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
                    assert broken is None, f"a row of {broken[0]} refers to none"
        finally:
            if sqlite and not connection.invalidated:
                _pragma(connection, "foreign_keys=ON")


def _pragma(connection: Connection, setting: str) -> None:
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _check_empty(connection: Connection) -> None:
    taken = set(metadata().tables) & set(inspect(connection).get_table_names())
    if taken:
        raise config_error(
            "database",
            f"the database has a table {min(taken)!r} that is not Tidemill's: give it an empty one",
        )


def _stamp(connection: Connection) -> None:
    connection.execute(
        text(
            f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES (:head)"), {"head": HEAD})


def script() -> ScriptDirectory:
    """The chain of revisions."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(FOLDER), version_locations=[str(FOLDER / "versions")])


def run_revisions(connection: Connection, found: str | None, target: str) -> None:
    """Run the revisions between `found` (None: nothing) and `target` in the transaction."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    chain = script()
    known = sorted(each.revision for each in chain.walk_revisions())
    if target not in known and target != BASE:
        raise config_error(
            "to",
            f"there is no revision {target[:32]!r} of the database; there are {', '.join(known)}",
        )
    if found is not None and found not in known:
        raise config_error(
            "database",
            f"the database is at revision {found}, which is newer than this version of Tidemill "
            f"knows ({HEAD}): update Tidemill, or restore a backup",
        )
    up = target != BASE and (found is None or found < target)
    steps = chain._upgrade_revs if up else chain._downgrade_revs
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": VERSION_TABLE,
            "fn": lambda revision, _: steps(target, revision),
            "script": chain,
        },
    )
    with Operations.context(context):
        context.run_migrations()
    if target == BASE:
        connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
