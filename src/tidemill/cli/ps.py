"""`tidemill ps`, `load` and `stop`: the models of a running server."""

from __future__ import annotations

import json
from typing import Any

import click

from tidemill.cli.declared import argument, option
from tidemill.cli.server_client import API_KEY, URL, ServerClient

LOAD_SECONDS = 3600.0
"""That a server may load a model, or wait for the requests of one that is unloaded."""

_JSON = option(False, "--json", help="The server's document.")

HEAD = ("model", "state", "memory", "requests", "waiting", "until")


def ps(
    every: bool = option(False, "--all", "-a", help="Models that are not loaded, too."),
    as_json: bool = _JSON,
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Show what a running server has loaded, or each Tidemill target of a gateway."""
    found = ServerClient(url, api_key).get("/admin/models?memory=true")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    shown = [model for model in found["models"] if every or model["state"] != "unloaded"]
    rows = [HEAD, *map(_row, shown)]
    if "silent" in found:  # of a gateway
        targets = ("target", *(model["target"] for model in shown))
        rows = [(*row, target) for row, target in zip(rows, targets, strict=True)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (
            f"{cell:>{width}}" if place in (2, 3, 4) else f"{cell:{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join(cells).rstrip())
    click.echo(_summary(found, len(shown)), err=True)
    for name, why in found.get("silent", {}).items():
        click.echo(f"target {name} does not say: {why}", err=True)


def load(
    model: str = argument(..., help="The model's name."),
    keep_alive: str | None = option(
        None, help="How long it stays loaded without use: 5m, 0, -1 for ever."
    ),
    as_json: bool = _JSON,
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Load a model of a running server before a request needs it."""
    body = {"model": model} | ({} if keep_alive is None else {"keep_alive": keep_alive})
    found = ServerClient(url, api_key, seconds=LOAD_SECONDS).post("/admin/models/load", body)
    click.echo(json.dumps(found, indent=2) if as_json else f"{found['name']} is {found['state']}")


def stop(
    model: str = argument(..., help="The model's name."),
    as_json: bool = _JSON,
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Unload a model of a running server, once the requests that use it have ended.

    The next request for it loads it again. The server goes on: Ctrl-C or SIGTERM ends it.
    """
    found = ServerClient(url, api_key, seconds=LOAD_SECONDS).post(
        "/admin/models/unload", {"model": model}
    )
    click.echo(json.dumps(found, indent=2) if as_json else f"{found['name']} is {found['state']}")


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    from tidemill.cli.machine import human_bytes

    state = model["state"]
    if state == "loading" and "progress" in model:
        state = f"loading {model['progress']:.0%}"
    size = model.get("memory_held")
    return (
        model["name"],
        "pinned" if state == "loaded" and model["pinned"] else state,
        "" if size is None else human_bytes(size),
        str(model["requests"]),
        str(model["waiting"]),
        _until(model),
    )


def _until(model: dict[str, Any]) -> str:
    left = model.get("until")
    if model["state"] != "loaded":
        return ""
    if left is None:
        return "stays" if model["pinned"] else "memory is needed"
    minutes, seconds = divmod(round(left), 60)
    text = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f"{text} after its requests" if model["requests"] else text


def _summary(found: dict[str, Any], shown: int) -> str:
    from tidemill.cli.machine import human_bytes

    held, budget = found.get("memory_held", 0), found["memory_budget"]
    line = f"{human_bytes(held)} held" + (f" of {human_bytes(budget)}" if budget else "")
    hidden = len(found["models"]) - shown
    return line + (f"; {hidden} more not loaded (--all)" if hidden else "")
