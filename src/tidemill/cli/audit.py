"""`tidemill audit verify` and `export`: the log of who did what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.cli.database import DATABASE, actor_name, with_database
from tidemill.cli.declared import argument, command, option

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidemill.store.database import Database
    from tidemill.store.verify import ChainReport

audit = click.Group(
    "audit",
    help="Check or export the log of administrative acts and requests (docs/usage.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def verify(
    as_json: bool = option(False, "--json", help="A JSON document."),
    database: str | None = DATABASE,
) -> None:
    """Check that no row of the audit log was changed, removed, moved or cut off.

    Exits with 1 if one was, and names the first of each chain. The key is that of the servers:
    TIDEMILL_SECRET or the file `secret` in TIDEMILL_HOME, or the file of TIDEMILL_AUDIT_KEY.
    """
    import json

    from tidemill.store.audit import sealer
    from tidemill.store.verify import document
    from tidemill.store.verify import verify as check

    def work(connection: Connection) -> list[ChainReport]:
        return list(check(connection, sealer()))

    reports = with_database(database, lambda opened: opened.read(work))
    faults = [report.fault for report in reports if report.fault is not None]
    if as_json:
        click.echo(json.dumps(document(reports), indent=2))
    else:
        for fault in faults:
            click.echo(str(fault))
        rows = sum(report.rows for report in reports)
        whole = len(reports) - len(faults)
        click.echo(f"{rows:,} rows; {whole} of {len(reports)} chains are whole", err=bool(faults))
    if faults:
        sys.exit(1)


def export(
    output: Path | None = option(None, "--output", "-o", help="A file; default: stdout."),
    since: str | None = option(None, help="A date (UTC), or how long ago: 24h, 7d."),
    database: str | None = DATABASE,
) -> None:
    """Write the audit log as JSON lines: rows, seals, and the chains' heads."""
    from tidemill.store.report import time_of
    from tidemill.store.verify import export as lines_of

    start = 0 if since is None else time_of(since, "since") * 1000

    def write(lines: Iterator[bytes]) -> None:
        if output is None:
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
            return
        with output.open("wb") as file:
            file.writelines(lines)

    with_database(database, lambda opened: opened.read(lambda c: write(lines_of(c, start))))


def prune(
    age: str = argument(..., help="Of the rows to be removed, at least: 90d, 400d."),
    force: bool = option(
        False, help="Also where a chain is broken: the log keeps what was wrong with it."
    ),
    database: str | None = DATABASE,
) -> None:
    """Remove the oldest rows of requests; what administrators did stays.

    The rest can be verified as before, and the log says what was removed, by whom. Where one of
    the rows was changed or is missing, that chain's rows stay, and the command exits with 1.
    """
    from tidemill.store.prune import prune_requests
    from tidemill.store.report import time_of

    before = time_of(age, "age") * 1000
    work = partial(prune_requests, before=before, actor=actor_name(), force=force)

    async def run(opened: Database) -> tuple[int, dict[str, str]]:
        total = 0
        faults: dict[str, str] = {}
        while True:
            done = await opened.write(work)
            total += done.removed
            for fault in done.faults:
                faults.setdefault(fault.chain, str(fault))  # the first is what began it
            if not done.removed:
                return total, faults

    removed, faults = with_database(database, run)
    for fault in faults.values():
        click.echo(fault, err=True)
    click.echo(f"removed: {removed:,} rows")
    if faults and not force:
        click.echo("the rows of broken chains stay; --force removes them too", err=True)
        sys.exit(1)


def retention(
    age: str | None = argument(
        None, help="For how long rows of requests are kept: 90d, forever. Default: show it."
    ),
    database: str | None = DATABASE,
) -> None:
    """Show or set for how long rows of requests are kept; servers remove older ones by the hour.

    Without it they are kept for ever. What administrators did is kept in any case.
    """
    from tidemill.base.errors import config_error
    from tidemill.store.audit import retention as find
    from tidemill.store.audit import set_retention
    from tidemill.store.retention import seconds_of

    if age is None:
        found = with_database(database, lambda opened: opened.read(find))
        click.echo("forever" if found is None else f"{found / 86400:g}d")
        return
    seconds = seconds_of(age)
    if seconds is None and age != "forever":
        raise config_error("age", f"{age!r} is no age: 90d, 12h or forever")
    work = partial(set_retention, actor=actor_name(), seconds=seconds)
    with_database(database, lambda opened: opened.write(work))
    click.echo(age)


audit.add_command(command("verify", verify))
audit.add_command(command("export", export))
audit.add_command(command("prune", prune))
audit.add_command(command("retention", retention))
