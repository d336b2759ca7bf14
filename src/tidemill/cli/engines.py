"""`tidemill engines`: the engines of a running server, and moving their requests to another one."""

from __future__ import annotations

import json
from typing import Any

import click

from tidemill.cli.declared import argument, command, option
from tidemill.cli.server_client import API_KEY, URL, ServerClient

MOVE_SECONDS = 120.0
"""That moving may take."""

_PATH = "/admin/engines"
_JSON = option(False, "--json", help="The server's document.")


def list_(as_json: bool = _JSON, url: str = URL, api_key: str | None = API_KEY) -> None:
    """Show the engines of the loaded models."""
    found = ServerClient(url, api_key).get(_PATH)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for one in found["engines"]:
        click.echo(_line(one))


def drain(
    engine: str = argument(..., help="The model's name."),
    to: str | None = option(
        None,
        help="HOST:PORT where another server's engine listens (--kv-listen). Default: a gateway "
        "finds another server; other clients' running requests end here, new ones are refused.",
    ),
    as_json: bool = _JSON,
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Move the requests of an engine to another server's engine of the same model: running ones go
    on there with their next token, new ones begin there. Clients notice nothing."""
    client = ServerClient(url, api_key, seconds=MOVE_SECONDS)
    body = {"model": engine} | ({} if to is None else {"to": to})
    _show(client.post(f"{_PATH}/drain", body), as_json=as_json)


def restore(
    engine: str = argument(..., help="The model's name."),
    as_json: bool = _JSON,
    url: str = URL,
    api_key: str | None = API_KEY,
) -> None:
    """Bring the requests of a drained engine back."""
    client = ServerClient(url, api_key, seconds=MOVE_SECONDS)
    _show(client.post(f"{_PATH}/restore", {"model": engine}), as_json=as_json)


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        if "moved" in found:
            click.echo(f"{_counted(found['moved'])} moved")
        click.echo(_line(found))


def _counted(requests: int) -> str:
    return f"{requests} request" + ("" if requests == 1 else "s")


def _line(one: dict[str, Any]) -> str:
    away = one["away"]
    leaving = ", is being drained" if one["leaving"] else ""
    role = "" if one.get("role", "both") == "both" else f" ({one['role']})"
    where = leaving if away is None else f", {away['requests']} of them at {away['at']}"
    return f"{one['model']}{role}: process {one['pid']}, {_counted(one['requests'])}{where}"


engines = click.Group(
    "engines",
    help="Engines of a running server: list them, move their requests to another server's engine "
    "and back (docs/kv-transfer.md).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _name, _function in (("list", list_), ("drain", drain), ("restore", restore)):
    engines.add_command(command(_name, _function))
