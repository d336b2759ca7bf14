"""`tidemill teams` and `tidemill users`: whose keys are."""

from __future__ import annotations

import json

import click

from tidemill.cli.acting import JSON, acted, actor, looked, print_table, shown
from tidemill.cli.database import DATABASE
from tidemill.cli.declared import argument, command, option

_TEAM = argument(..., help="The team's name or id.")
_USER = argument(..., help="The user's name or id.")
_DISABLE = "Refuse all keys of it, or take them again."


def create_team(
    name: str = argument(..., help="Unique."),
    organisation: str | None = option(
        None, help="Its organisation, made where there is none; default: default."
    ),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Make a team."""
    from tidemill.store import teams

    who = actor()
    shown(acted(database, lambda c: teams.create_team(c, who, name, organisation)), as_json=as_json)


def list_teams(as_json: bool = JSON, database: str | None = DATABASE) -> None:
    """List the teams."""
    from tidemill.store import teams

    who = actor()
    found = looked(database, lambda c: teams.list_teams(c, who))
    if as_json:
        click.echo(json.dumps({"teams": found}, ensure_ascii=False, indent=1))
    else:
        print_table(("name", "organisation", "disabled", "created", "id"), found)


def show_team(name: str = _TEAM, as_json: bool = JSON, database: str | None = DATABASE) -> None:
    """Show one team with its keys and users."""
    from tidemill.store import teams

    who = actor()
    shown(looked(database, lambda c: teams.describe_team(c, who, name)), as_json=as_json)


def change_team(
    name: str = _TEAM,
    new_name: str | None = option(None, "--rename", help="Its new name."),
    disabled: bool | None = option(None, "--disable/--enable", help=_DISABLE),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Rename a team, or refuse its keys."""
    from tidemill.store import teams

    who = actor()
    found = acted(
        database,
        lambda c: teams.change_team(c, who, name, new_name=new_name, disabled=disabled),
    )
    shown(found, as_json=as_json)


def create_user(
    name: str = argument(..., help="Unique; of an OIDC issuer's user, its subject or e-mail."),
    role: str = option("user", help="admin, manager (of its team), user, metrics or auditor."),
    team: str | None = option(None, help="Default: default."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Make a user, whom keys may belong to."""
    from tidemill.store import teams

    who = actor()
    shown(acted(database, lambda c: teams.create_user(c, who, name, role, team)), as_json=as_json)


def list_users(
    team: str | None = option(None, help="Only users of this team."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """List the users."""
    from tidemill.store import teams

    who = actor()
    found = looked(database, lambda c: teams.list_users(c, who, team))
    if as_json:
        click.echo(json.dumps({"users": found}, ensure_ascii=False, indent=1))
    else:
        print_table(("name", "role", "team", "disabled", "created", "id"), found)


def show_user(name: str = _USER, as_json: bool = JSON, database: str | None = DATABASE) -> None:
    """Show one user with its keys."""
    from tidemill.store import teams

    who = actor()
    shown(looked(database, lambda c: teams.describe_user(c, who, name)), as_json=as_json)


def change_user(
    name: str = _USER,
    role: str | None = option(None, help="As of create."),
    team: str | None = option(None, help="Move it; its keys stay where they are."),
    disabled: bool | None = option(None, "--disable/--enable", help=_DISABLE),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Give a user another role or team, or refuse its keys."""
    from tidemill.store import teams

    who = actor()
    found = acted(
        database,
        lambda c: teams.change_user(c, who, name, role=role, team=team, disabled=disabled),
    )
    shown(found, as_json=as_json)


def _group(name: str, help: str) -> click.Group:
    return click.Group(
        name,
        help=help,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


teams = _group("teams", "Teams in the database: keys and users belong to one each.")
users = _group("users", "Users in the database: whom keys belong to, with a role.")
for _name, _of_team, _of_user in (
    ("create", create_team, create_user),
    ("list", list_teams, list_users),
    ("show", show_team, show_user),
    ("change", change_team, change_user),
):
    teams.add_command(command(_name, _of_team))
    users.add_command(command(_name, _of_user))
