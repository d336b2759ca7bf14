"""`tidemill db`: backups, what is kept for how long, and removing what somebody said."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.base.errors import config_error
from tidemill.cli.database import DATABASE, actor_name, located, with_database
from tidemill.cli.declared import argument, command, option

if TYPE_CHECKING:
    from sqlalchemy import Connection

_FOREVER = "forever"


def backup(
    target: Path = argument(..., help="The new file."),
    database: str | None = DATABASE,
) -> None:
    """Copy the database into a file, while servers go on.

    SQLite: the copy is a database itself. PostgreSQL: an archive for pg_restore, by pg_dump. Keys
    and content are of use only with the server's secret (the file `secret` in TIDEMILL_HOME): keep
    a copy of it elsewhere.
    """
    from tidemill.cli.progress import bar
    from tidemill.store.backup import back_up

    with bar("copied", 100) as advance:
        done = 0

        def pages(left: int, every: int) -> None:
            nonlocal done
            now = 100 * (every - left) // max(1, every)
            advance(now - done)
            done = now

        size = back_up(located(database), target, pages)
    click.echo(f"{target}: {size:,} bytes")


def purge(
    subject: str = option(
        ..., help="A key or a user, by name or id; without keys addr:ADDRESS of a client."
    ),
    yes: bool = option(False, "--yes", help="Do not ask."),
    as_json: bool = option(False, "--json", help="A JSON document."),
    database: str | None = DATABASE,
) -> None:
    """Remove the stored responses, conversations, files and batches of a key or a user.

    A receipt is written to the audit log. Usage and audit have no content and stay.
    """
    from tidemill.store.purge import forget, owners_of
    from tidemill.store.purge import purge as remove

    def find(connection: Connection) -> list[str]:
        return owners_of(connection, subject)

    owners = with_database(database, lambda opened: opened.read(find))
    if not yes:
        click.confirm(f"remove what {', '.join(owners)} stored?", abort=True, err=True)
    work = partial(remove, actor=actor_name(), owners=owners)
    found = with_database(database, lambda opened: opened.write(work))
    forget(located(database))
    if as_json:
        click.echo(json.dumps({"owners": owners, "removed": found}))
    else:
        click.echo("removed: " + ", ".join(f"{count} {name}" for name, count in found.items()))


def retention(
    age: str | None = argument(
        None, help="For how long content is kept: 30d, 12h, forever. Default: show what is set."
    ),
    team: str | None = option(None, help="Of this team alone; default: of all others."),
    database: str | None = DATABASE,
) -> None:
    """Show or set for how long stored responses and conversations are kept.

    Servers remove what is older within the hour.
    """
    from tidemill.store.retention import EVERYBODY, seconds_of, set_for, shown

    if age is None:
        rules = with_database(database, lambda opened: opened.read(shown))
        for name, kept in rules.items():
            click.echo(f"{name}: {_age(kept)}")
        if EVERYBODY not in rules:
            click.echo(f"{EVERYBODY}: forever")
        return
    seconds = seconds_of(age)
    if seconds is None and age != _FOREVER:
        raise config_error("age", f"{age!r} is no age: 30d, 12h, 90m or forever")
    work = partial(set_for, actor=actor_name(), team=team, seconds=seconds)
    with_database(database, lambda opened: opened.write(work))
    click.echo(f"{team or EVERYBODY}: {age}")


def _age(seconds: int) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def migrate(
    to: str | None = option(
        None, help="A revision, such as 0003, before an older version of Tidemill is installed."
    ),
    database: str | None = DATABASE,
) -> None:
    """Bring the database to this version's schema, or back to an older revision, and print it.

    Servers do the former when they open it. Going back drops what only newer versions keep: make a
    backup first, and stop the servers, which would bring it forward again.
    """
    from tidemill.store.database import Database
    from tidemill.store.migrations.migrate import BASE
    from tidemill.store.schema import HEAD

    if to == BASE:
        raise config_error("to", "--to base would remove everything; drop the database instead")

    async def work(opened: Database) -> None:
        await opened.migrate(to or HEAD)

    with_database(database, work)
    click.echo(to or HEAD)


db = click.Group(
    "db",
    help="Back the database up, and remove what is no longer to be kept (docs/content.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _function in (backup, purge, retention, migrate):
    db.add_command(command(_function.__name__, _function))
