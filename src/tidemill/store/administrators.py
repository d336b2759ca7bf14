"""An administrator's key does not lock everybody out of the server that it administers."""

from __future__ import annotations

from sqlalchemy import Connection, or_, select

from tidemill.base.errors import bad_request
from tidemill.store.actors import Actor
from tidemill.store.tables.identity import KEYS, TEAMS, USERS


def check_administered(
    connection: Connection, actor: Actor, now: int, param: str, what: str
) -> None:
    """Called at the end of an act's transaction: it does not count where it has left no key that
    administers. Who needs no key of the database (the commands, a key file's administrator) may
    take the last one away.

    Args:
        connection: of the transaction.
        actor: who acts.
        now: seconds since 1970.
        param: the field that did it.
        what: the act.

    Raises:
        TidemillError: kind BAD_REQUEST.
    """
    if not actor.key or has_administrator(connection, now):
        return
    raise bad_request(
        param,
        f"{what} would leave no key with the role admin that can be used; make another first (POST "
        "/admin/keys, or `tidemill keys create NAME --role admin` at the server)",
    )


def has_administrator(connection: Connection, now: int) -> bool:
    """Whether there is a key with the role admin that can be used."""
    query = (
        select(KEYS.c.id)
        .join(TEAMS, TEAMS.c.id == KEYS.c.team_id)
        .outerjoin(USERS, USERS.c.id == KEYS.c.user_id)
        .where(
            KEYS.c.role == "admin",
            KEYS.c.revoked.is_(None),
            KEYS.c.disabled.is_(False),
            TEAMS.c.disabled.is_(False),
            or_(USERS.c.id.is_(None), USERS.c.disabled.is_(False)),
            or_(KEYS.c.expires.is_(None), KEYS.c.expires > now),
        )
        .limit(1)
    )
    return connection.execute(query).scalar() is not None
