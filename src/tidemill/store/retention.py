"""For how long a team's content is kept: as administrators say it."""

from __future__ import annotations

import re

from sqlalchemy import Connection, or_, select

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.store import audit, content
from tidemill.store.tables.identity import TEAMS

EVERYBODY = "all others"
_AGE = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(age: str) -> int | None:
    """Seconds of an age such as ``30d``; None where it is none."""
    found = _AGE.fullmatch(age)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def shown(connection: Connection) -> dict[str, int]:
    """Seconds by team's name; `EVERYBODY` for those that have none of their own."""
    names = {
        identity: name for identity, name in connection.execute(select(TEAMS.c.id, TEAMS.c.name))
    }
    rules = content.retention(connection)
    return {
        (EVERYBODY if team == content.EVERY_TEAM else names.get(team, team)): seconds
        for team, seconds in sorted(rules.items())
    }


def set_for(connection: Connection, actor: str, team: str | None, seconds: int | None) -> None:
    """Set the retention of a team, by name or id, or of all others; noted in the audit log.

    Raises:
        TidemillError: kind NOT_FOUND: there is no such team.
    """
    identity = content.EVERY_TEAM
    if team is not None:
        query = select(TEAMS.c.id).where(or_(TEAMS.c.name == team, TEAMS.c.id == team))
        found = connection.execute(query).scalar()
        if found is None:
            raise TidemillError(ErrorKind.NOT_FOUND, f"there is no team {team!r}", param="team")
        identity = str(found)
    content.set_retention(connection, identity, seconds)
    audit.record(
        connection, actor, "content.retention", identity or EVERYBODY, {"seconds": seconds}
    )
