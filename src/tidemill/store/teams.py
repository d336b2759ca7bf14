"""Organisations, teams and users: made, changed, listed."""

from __future__ import annotations

import re
import time
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, select

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.base.ids import new_id
from tidemill.store import audit, settings
from tidemill.store.actors import ROLES, Actor
from tidemill.store.administrators import check_administered
from tidemill.store.tables.identity import KEYS, ORGANISATIONS, TEAMS, USERS

DEFAULT = "default"
"""Name of the organisation and the team of what names none; made when it is first needed."""

MAX_LISTED = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

Facts = dict[str, Any]
"""What is shown of a row, as JSON."""


def check_name(param: str, name: str) -> str:
    """A name as it may be; it goes into logs, metrics and headers.

    Raises:
        TidemillError: kind BAD_REQUEST.
    """
    if not is_name(name):
        raise bad_request(
            param,
            f"{param} must be 1 to 64 letters, digits and ._@-, and begin with a letter or a digit",
        )
    return name


def is_name(text: str) -> bool:
    """Whether something may have this name or id."""
    return _NAME.fullmatch(text) is not None


def conflict(param: str, message: str) -> TidemillError:
    """What there is already."""
    return bad_request(param, message)


def not_found(what: str, name: str) -> TidemillError:
    """No such row, or none that the actor sees."""
    return TidemillError(ErrorKind.NOT_FOUND, f"there is no {what} {name[:80]!r}", param=what)


def now() -> int:
    """Seconds since the epoch."""
    return int(time.time())


# -- organisations ---------------------------------------------------------------------------------


def organisation_of(connection: Connection, name: str | None) -> Any:
    """The row of an organisation by name or id; None: the default one, made where it is missing."""
    row = find(connection, ORGANISATIONS, name or DEFAULT)
    if row is None and name is None:
        values = {"id": new_id("org"), "name": DEFAULT, "created": now()}
        connection.execute(ORGANISATIONS.insert().values(values))
        row = find(connection, ORGANISATIONS, DEFAULT)
    if row is None:
        raise not_found("organisation", name or DEFAULT)
    return row


def create_organisation(connection: Connection, actor: Actor, name: str) -> Facts:
    """Make an organisation."""
    actor.check_admin("making an organisation")
    check_name("organisation", name)
    if find(connection, ORGANISATIONS, name) is not None:
        raise conflict("organisation", f"there is an organisation {name!r} already")
    values: Facts = {"id": new_id("org"), "name": name, "created": now()}
    connection.execute(ORGANISATIONS.insert().values(values))
    noted(connection, actor, "organisation.create", values["id"], {"name": name})
    return values


# -- teams -----------------------------------------------------------------------------------------


def team_of(connection: Connection, actor: Actor, name: str | None) -> Any:
    """The row of a team by name or id, if the actor sees it.

    Args:
        connection: in a transaction; writing, where `name` is None.
        actor: a manager's own team is meant where `name` is None.
        name: None: the default one, made where it is missing.
    """
    if name is None and actor.role == "manager":
        name = actor.team
    row = find(connection, TEAMS, name or DEFAULT)
    if row is None and name is None:
        organisation = organisation_of(connection, None)
        connection.execute(TEAMS.insert().values(_team(organisation.id, DEFAULT)))
        row = find(connection, TEAMS, DEFAULT)
    if row is None or not actor.sees(row.id):
        raise not_found("team", name or DEFAULT)
    return row


def create_team(
    connection: Connection, actor: Actor, name: str, organisation: str | None = None
) -> Facts:
    """Make a team; its organisation is made with it where there is none of that name."""
    actor.check_admin("making a team")
    check_name("team", name)
    if find(connection, TEAMS, name) is not None:
        raise conflict("team", f"there is a team {name!r} already")
    if organisation is not None and find(connection, ORGANISATIONS, organisation) is None:
        create_organisation(connection, actor, organisation)
    parent = organisation_of(connection, organisation)
    values = _team(parent.id, name)
    connection.execute(TEAMS.insert().values(values))
    noted(connection, actor, "team.create", values["id"], {"name": name})
    return describe_team(connection, actor, name)


def _team(organisation: str, name: str) -> Facts:
    return {
        **{"id": new_id("team"), "organisation_id": organisation, "name": name},
        **{"created": now(), "disabled": False},
    }


def change_team(
    connection: Connection,
    actor: Actor,
    name: str,
    *,
    new_name: str | None = None,
    disabled: bool | None = None,
) -> Facts:
    """Rename a team, or let its keys be refused."""
    actor.check_admin("changing a team")
    row = team_of(connection, actor, name)
    changes: Facts = {}
    if new_name is not None and new_name != row.name:
        check_name("name", new_name)
        if find(connection, TEAMS, new_name) is not None:
            raise conflict("name", f"there is a team {new_name!r} already")
        changes["name"] = new_name
    if disabled is not None:
        changes["disabled"] = disabled
    if changes:
        connection.execute(TEAMS.update().where(TEAMS.c.id == row.id).values(changes))
        noted(connection, actor, "team.change", row.id, changes)
        what = f"disabling the team {row.name!r}"
        check_administered(connection, actor, now(), "disabled", what)
    return describe_team(connection, actor, row.id)


def list_teams(connection: Connection, actor: Actor) -> list[Facts]:
    """The teams that the actor sees, by name."""
    query = (
        select(TEAMS, ORGANISATIONS.c.name.label("organisation"))
        .join(ORGANISATIONS, ORGANISATIONS.c.id == TEAMS.c.organisation_id)
        .order_by(TEAMS.c.name)
    )
    if not actor.everywhere:
        query = query.where(TEAMS.c.id == actor.team)
    return [shown(row) for row in connection.execute(query)]


def describe_team(connection: Connection, actor: Actor, name: str) -> Facts:
    """One team, with the names of its keys and users."""
    row = team_of(connection, actor, name)
    organisation = connection.execute(
        select(ORGANISATIONS.c.name).where(ORGANISATIONS.c.id == row.organisation_id)
    ).scalar()
    keys = select(KEYS.c.name).where(KEYS.c.team_id == row.id, KEYS.c.revoked.is_(None))
    users = select(USERS.c.name).where(USERS.c.team_id == row.id)
    return {
        **shown(row),
        "organisation": organisation,
        "keys": sorted(connection.execute(keys.limit(MAX_LISTED)).scalars()),
        "users": sorted(connection.execute(users.limit(MAX_LISTED)).scalars()),
    }


# -- users -----------------------------------------------------------------------------------------


def user_of(connection: Connection, actor: Actor, name: str) -> Any:
    """The row of a user by name or id, if the actor sees it."""
    row = find(connection, USERS, name)
    if row is None or not actor.sees(row.team_id or ""):
        raise not_found("user", name)
    return row


def create_user(
    connection: Connection,
    actor: Actor,
    name: str,
    role: str = "user",
    team: str | None = None,
) -> Facts:
    """Make a user: whom keys and an OIDC issuer's tokens may belong to."""
    check_name("user", name)
    check_role(role)
    actor.check_role(role)
    row = team_of(connection, actor, team)
    actor.check_team(row.id, "making a user")
    if find(connection, USERS, name) is not None:
        raise conflict("user", f"there is a user {name!r} already")
    values = {
        **{"id": new_id("user"), "name": name, "role": role, "team_id": row.id},
        **{"created": now(), "disabled": False},
    }
    connection.execute(USERS.insert().values(values))
    noted(connection, actor, "user.create", values["id"], {"name": name, "role": role})
    return describe_user(connection, actor, name)


def change_user(
    connection: Connection,
    actor: Actor,
    name: str,
    *,
    role: str | None = None,
    team: str | None = None,
    disabled: bool | None = None,
) -> Facts:
    """Give a user another role or team, or let its keys be refused."""
    row = user_of(connection, actor, name)
    actor.check_team(row.team_id or "", "changing a user")
    actor.check_role(row.role)  # a manager does not change an administrator
    changes: Facts = {}
    if role is not None:
        check_role(role)
        actor.check_role(role)
        changes["role"] = role
    if team is not None:
        moved = team_of(connection, actor, team)
        actor.check_team(moved.id, "moving a user")
        changes["team_id"] = moved.id
    if disabled is not None:
        changes["disabled"] = disabled
    if changes:
        connection.execute(USERS.update().where(USERS.c.id == row.id).values(changes))
        noted(connection, actor, "user.change", row.id, changes)
        what = f"disabling the user {row.name!r}"
        check_administered(connection, actor, now(), "disabled", what)
    return describe_user(connection, actor, row.id)


def list_users(connection: Connection, actor: Actor, team: str | None = None) -> list[Facts]:
    """The users that the actor sees, by name."""
    query = _users().order_by(USERS.c.name)
    if team is not None:
        query = query.where(USERS.c.team_id == team_of(connection, actor, team).id)
    elif not actor.everywhere:
        query = query.where(USERS.c.team_id == actor.team)
    return [shown(row) for row in connection.execute(query)]


def describe_user(connection: Connection, actor: Actor, name: str) -> Facts:
    """One user, with the names of its keys."""
    row = user_of(connection, actor, name)
    found = connection.execute(_users().where(USERS.c.id == row.id)).one()
    keys = select(KEYS.c.name).where(KEYS.c.user_id == row.id, KEYS.c.revoked.is_(None))
    return {**shown(found), "keys": sorted(connection.execute(keys.limit(MAX_LISTED)).scalars())}


def _users() -> Any:
    return select(USERS, TEAMS.c.name.label("team")).outerjoin(TEAMS, TEAMS.c.id == USERS.c.team_id)


def check_role(role: str) -> None:
    """Raise BAD_REQUEST unless there is such a role."""
    if role not in ROLES:
        raise bad_request("role", f"role must be one of {', '.join(ROLES)}")


# -- what they share -------------------------------------------------------------------------------


def find(connection: Connection, table: Table, name: str, *among: ColumnElement[bool]) -> Any:
    """A row by its id, else by its name: nobody can name something so that it hides another.

    Args:
        connection: in a transaction.
        table: has the columns id and name.
        name: as given.
        among: which rows count by their names.
    """
    if not is_name(name):  # PostgreSQL has no text with NUL
        return None
    row = connection.execute(select(table).where(table.c.id == name)).first()
    return row or connection.execute(select(table).where(table.c.name == name, *among)).first()


def shown(row: Row[Any]) -> Facts:
    return dict(row._mapping)


def noted(connection: Connection, actor: Actor, act: str, subject: str, detail: Facts) -> None:
    settings.changed(connection, settings.IDENTITY)
    audit.record(connection, actor.name, act, subject, detail)
