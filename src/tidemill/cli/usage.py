"""`tidemill usage`: what was used, and what it cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from tidemill.base.errors import config_error
from tidemill.cli.database import DATABASE, located, with_database
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tidemill.store.database import Database
    from tidemill.store.usage import Query, UsageRow

_HEADS = {
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "generated_tokens": "generated",
    "reasoning_tokens": "reasoning",
}
_FEW = ("requests", "refused", "prompt_tokens", "cached_tokens", "generated_tokens", "cost")


def usage(
    by: str = option(
        "key,model",
        help="What is told apart: key, team, organisation, user, model, version, operation, day, "
        "hour; by commas.",
    ),
    since: str = option("30d", help="A date (UTC), or how long ago: 24h, 7d."),
    until: str | None = option(None, help="A date (UTC), or how long ago; default: now."),
    key: tuple[str, ...] = option((), help="Only these keys, by name or id; repeatable."),
    team: tuple[str, ...] = option((), help="Only these teams; repeatable."),
    user: tuple[str, ...] = option((), help="Only these users; repeatable."),
    model: tuple[str, ...] = option((), help="Only these models; repeatable."),
    as_json: bool = option(False, "--json", help="A JSON document."),
    as_csv: bool = option(False, "--csv", help="CSV, for spreadsheets."),
    database: str | None = DATABASE,
) -> None:
    """Show requests, tokens and money by key, team, model or time.

    Works beside a running server, whose last two seconds may be missing, and without one.
    """
    from tidemill.library.home import default_home
    from tidemill.store.recorder import drain_left
    from tidemill.store.report import csv_text, document, time_of
    from tidemill.store.settings import get
    from tidemill.store.spool import spool_folder
    from tidemill.store.usage import CURRENCY, FOREVER, Query, ids_named, lost, total_of
    from tidemill.store.usage import usage as rows_of

    if as_json and as_csv:
        raise config_error("csv", "--json and --csv exclude each other")
    start = time_of(since, "since")
    end = None if until is None else time_of(until, "until")
    dimensions = tuple(dict.fromkeys(part.strip() for part in by.split(",") if part.strip()))
    query = Query(
        since=start,
        until=FOREVER if end is None else end,
        by=dimensions,
        models=model or None,
    )
    spools = spool_folder(default_home(), located(database))

    def report(connection: Connection) -> tuple[Query, list[UsageRow], int, str]:
        import msgspec

        chosen = {
            f"{kind}s": ids_named(connection, kind, names)
            for kind, names in (("key", key), ("team", team), ("user", user))
            if names
        }
        asked = msgspec.structs.replace(query, **chosen)
        found = rows_of(connection, asked)
        currency = get(connection, CURRENCY) or "USD"
        return asked, found, lost(connection, asked.since, asked.until), currency

    async def work(opened: Database) -> tuple[Query, list[UsageRow], int, str]:
        await drain_left(spools, opened)  # of servers that were killed
        return await opened.read(report)

    asked, rows, missing, currency = with_database(database, work)
    total = total_of(rows)
    if as_json:
        click.echo(json.dumps(document(asked, rows, total, missing, currency), indent=2))
    elif as_csv:
        click.echo(csv_text(dimensions, rows), nl=False)
    else:
        _show(dimensions, rows, total, currency)
        if missing:
            click.echo(f"{missing} requests were answered and not recorded", err=True)


def _show(by: tuple[str, ...], rows: list[UsageRow], total: UsageRow, currency: str) -> None:
    from tidemill.contract.prices import money_text
    from tidemill.store.report import row_document

    def cells(row: UsageRow) -> list[str]:
        values = row_document(row)
        shown = [str(values.get(f"{kind}_name") or values.get(kind, "")) or "-" for kind in by]
        numbers = [money_text(row.cost) if n == "cost" else f"{values[n]:,}" for n in _FEW]
        return [*shown, *numbers]

    head = [*by, *(f"cost {currency}" if n == "cost" else _HEADS.get(n, n) for n in _FEW)]
    lines = [head, *map(cells, rows)]
    if len(rows) != 1:
        last = cells(total)
        lines.append([*(["total"] + [""] * len(by))[: len(by)], *last[len(by) :]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        shown = (
            f"{cell:{width}}" if place < len(by) else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        click.echo("  ".join(shown).rstrip())
