"""`tidemill explain`: where the time of a request went, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from tidemill.base.errors import config_error
from tidemill.cli.declared import argument, option
from tidemill.cli.outputs import check_writable
from tidemill.cli.server_client import API_KEY, URL, ServerClient

HEAD = ("id", "model", "status", "total", "first token", "longest", "prompt", "cached", "output")


def explain(
    id: str | None = argument(
        None, help="X-Request-Id of its answer, or the answer's own id; a beginning is enough."
    ),
    as_json: bool = option(False, "--json", help="The server's document."),
    svg: Path | None = option(None, help="Write the time line as a picture to this file."),
    model: str | None = option(None, help="Of the list: only this model's."),
    slower: float | None = option(None, help="Of the list: those that took more seconds."),
    limit: int = option(20, help="Of the list: how many."),
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Show where a request's time went, and why; without an id, the latest requests."""
    from tidemill.telemetry import timeline

    check_writable(svg=svg)
    if id == "":
        raise config_error("id", "the id is empty; leave it out for the latest requests")
    client = ServerClient(url, api_key)
    if id is None:
        if svg is not None:
            raise config_error("svg", "--svg draws one request: give its id")
        query = f"limit={limit}"
        query += "" if model is None else f"&model={quote(model)}"
        query += "" if slower is None else f"&slower={slower}"
        found = client.get(f"/admin/requests?{query}")
        click.echo(json.dumps(found, indent=2) if as_json else _list(found["requests"]))
        return
    if model is not None or slower is not None:
        raise config_error("id", "--model and --slower choose from the list: give no id")
    found = client.get(f"/admin/requests/{quote(id, safe='')}")
    if svg is not None:
        svg.write_text(timeline.svg(found), encoding="utf-8")
        click.echo(f"wrote {svg}", err=True)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif svg is None:
        click.echo(timeline.text(found), nl=False)


def _list(requests: list[dict[str, Any]]) -> str:
    from tidemill.telemetry.timeline import shown_seconds

    if not requests:
        return "no requests"
    rows = [HEAD]
    for one in requests:
        first = one["first_token_seconds"]
        running = one["state"] == "running"
        rows.append(
            (
                *(one["id"], one["model"] or "-"),
                "running" if running else str(one["code"] or one["status"] or "-"),
                shown_seconds(one["total_seconds"]),
                "-" if first is None else shown_seconds(first),
                one["longest_phase"] or "-",
                *(str(one[name]) for name in ("prompt_tokens", "cached_tokens")),
                str(one["generated_tokens"]),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    left = (0, 1, 2, 5)
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
