"""What commands about keys, teams and users share: who acts, a transaction, and printing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemill.cli.database import with_database
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidemill.store.actors import Actor

T = TypeVar("T")

JSON = option(False, "--json", help="As JSON.")

_TIMES = ("created", "expires", "revoked")


def actor() -> Actor:
    """Who uses the command line: whoever may read the database's secret administers it."""
    import getpass

    from tidemill.store.actors import Actor

    return Actor(f"cli:{getpass.getuser()}")


def acted(database: str | None, work: Callable[[Connection], T]) -> T:
    """Carry an administrative act out; `database` as of `--database`."""
    from tidemill.store.administration import act

    return with_database(database, lambda opened: act(opened, work))


def looked(database: str | None, work: Callable[[Connection], T]) -> T:
    """Read; `database` as of `--database`."""
    return with_database(database, lambda opened: opened.read(work))


def print_table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Rows in columns, empty columns left out."""
    texts = [{name: _text(name, row.get(name)) for name in columns} for row in rows]
    used = [name for name in columns if any(text[name] for text in texts)]
    widths = {name: max(len(name), *(len(text[name]) for text in texts)) for name in used}
    for line in ({name: name for name in used}, *texts) if texts else ():
        click.echo("  ".join(line[name].ljust(widths[name]) for name in used).rstrip())
    if not texts:
        click.echo("none")


def print_json(document: Any) -> None:
    """A document for programs."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=1))


def shown(found: dict[str, Any], *, as_json: bool) -> None:
    """One thing's facts, a line each."""
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, indent=1))
        return
    for name, value in found.items():
        if name == "secrets":
            for secret in value:
                ends = _text("expires", secret["expires"]) or "stays"
                click.echo(f"secret: {secret['prefix'] or '(imported)'}..., {ends}")
        elif value not in (None, "", [], {}):
            click.echo(f"{name}: {_text(name, value)}")


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in _TIMES:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(
            f"{key}={'none' if amount is None else amount}" for key, amount in value.items()
        )
    return str(value)
