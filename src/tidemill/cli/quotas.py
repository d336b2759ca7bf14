"""`tidemill quotas`: limits of teams, users and keys, set and shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tidemill.base.errors import config_error
from tidemill.cli.database import DATABASE, with_database
from tidemill.cli.declared import argument, command, option

if TYPE_CHECKING:
    from tidemill.store.actors import Actor

_LEVEL = argument(..., help="server, organisation, team, user or key.")
_JSON = option(False, "--json", help="A JSON document.")


def set_(
    level: str = _LEVEL,
    values: tuple[str, ...] = argument(
        (),
        help="The name (not of the server), then LIMIT=VALUE: tokens_per_day=1000000 rpm=60 "
        "soft_money_per_month=400. VALUE may be none (no limit) or default (the level's again).",
    ),
    as_json: bool = _JSON,
    database: str | None = DATABASE,
) -> None:
    """Set limits of a team, user, key, organisation or of the server (docs/quotas.md).

    Running servers follow within a second or two.
    """
    from tidemill.store.administration import act
    from tidemill.store.limit_acts import change_limits

    name, limits = _read(level, values)
    actor = _actor()

    def work(connection: Any) -> dict[str, Any]:
        return change_limits(connection, actor, level, name, limits)

    found = with_database(database, lambda opened: act(opened, work))
    click.echo(json.dumps(found) if as_json else _text(found))


def show(
    level: str | None = argument(None, help="server, organisation, team, user or key; all."),
    name: str | None = argument(None, help="Of which subject; all of the level."),
    as_json: bool = _JSON,
    database: str | None = DATABASE,
) -> None:
    """Show limits of their own, and what is taken of the day's and month's."""
    from tidemill.store.limit_acts import describe_limits, list_limits

    actor = _actor()

    def work(connection: Any) -> list[dict[str, Any]]:
        if level is not None and (name is not None or level == "server"):
            return [describe_limits(connection, actor, level, name or "")]
        found = list_limits(connection, actor)
        return [one for one in found if level in (None, one["level"])]

    found = with_database(database, lambda opened: opened.read(work))
    if as_json:
        click.echo(json.dumps({"quotas": found}))
    elif not found:
        click.echo("no limits of their own; defaults are in the deployment file ([quotas.LEVEL])")
    for one in () if as_json else found:
        click.echo(_text(one))


def _read(level: str, values: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    words = list(values)
    name = words.pop(0) if words and "=" not in words[0] else ""
    if not name and level != "server":
        raise config_error("name", f"which {level}? `tidemill quotas set {level} NAME LIMIT=VALUE`")
    limits = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise config_error("limits", f"{word!r} is no LIMIT=VALUE, such as rpm=60")
        limits[key] = value
    return name, limits


def _actor() -> Actor:
    import getpass

    from tidemill.store.actors import Actor

    return Actor(f"cli:{getpass.getuser()}")


def _text(found: dict[str, Any]) -> str:
    used = found["used"]
    parts = []
    for name, value in found["limits"].items():
        of = f" ({used[name]} taken)" if name in used else ""
        parts.append(f"{name}={value}{of}")
    who = found["level"] + (f" {found['name']}" if found["name"] else "")
    return f"{who}: {', '.join(parts) or 'no limit of its own'}"


quotas = click.Group(
    "quotas",
    help="Limits and budgets of teams, users and keys in the database: set, show.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
quotas.add_command(command("set", set_))
quotas.add_command(command("show", show))
