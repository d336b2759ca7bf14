"""Limits as administrators set and see them: the command line and `/admin/quotas` call these."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.contract.quotas import MEASURES, SOFT, Level, Limit, Limits, Period, parse_limit
from tidemill.store import audit, balances, limits
from tidemill.store.actors import Actor, forbidden
from tidemill.store.limits import Subject
from tidemill.store.tables.identity import KEYS, ORGANISATIONS, TEAMS, USERS
from tidemill.store.tables.quotas import BALANCES
from tidemill.store.teams import find, not_found, organisation_of, team_of, user_of

DEFAULT = "default"
"""Value of a limit that is removed: the level's default counts again."""

MAX_NAME = 200
"""Characters of the name of a key that is not in the database."""

_OUTSIDE = ("key:", "addr:")
"""What begins the names of clients that are not in the database."""

_TABLES = {
    Level.ORGANISATION: ORGANISATIONS,
    Level.TEAM: TEAMS,
    Level.USER: USERS,
    Level.KEY: KEYS,
}

Facts = dict[str, Any]


def change_limits(
    connection: Connection, actor: Actor, level: str, name: str, values: Mapping[str, object]
) -> Facts:
    """Set limits of a subject, and leave a row in the audit trail.

    Args:
        connection: in a writing transaction.
        actor: administrators may change all; managers those of their team's keys and users.
        level: see `Level`.
        name: of the subject, or its id, empty for the server; ``key:NAME`` of a key file's key,
            ``addr:ADDRESS`` of a client without a key.
        values: by name as `parse_limit` reads them; `DEFAULT` removes one.

    Raises:
        TidemillError: kinds BAD_REQUEST, CONFIG, NOT_FOUND, FORBIDDEN.
    """
    subject, shown = subject_of(connection, actor, level, name, change=True)
    if not values:
        raise bad_request("limits", f"limits is empty; there are {', '.join(MEASURES)}")
    set_ = [parse_limit(key, value) for key, value in values.items() if value != DEFAULT]
    removed = [parse_limit(key, None) for key, value in values.items() if value == DEFAULT]
    limits.remove_limits(connection, subject, [(one.measure, one.soft) for one in removed])
    found = limits.set_limits(connection, subject, set_)
    now = time.time()
    for one in set_:
        period = _period(MEASURES[one.measure].period, now)
        if period and one.amount is not None:
            balances.begin(connection, *subject, one, period, int(now * 1000))
    detail = {**_values(set_), **{one.name: DEFAULT for one in removed}}
    audit.record(connection, actor.name, "limits.set", _written(subject), detail)
    return _facts(subject, shown, found, _taken(connection).get(subject, {}))


def list_limits(connection: Connection, actor: Actor) -> list[Facts]:
    """Every subject with limits of its own that the actor sees, with what is taken of them."""
    taken = _taken(connection)
    found = []
    for subject, own in limits.read_limits(connection).items():
        row = _row(connection, subject)
        team = subject[1] if subject[0] is Level.TEAM else getattr(row, "team_id", "") or ""
        if actor.everywhere or actor.sees(team):
            found.append(_facts(subject, _shown(subject, row), own, taken.get(subject, {})))
    order = {level: place for place, level in enumerate(Level)}
    return sorted(found, key=lambda one: (order[Level(one["level"])], one["name"]))


def describe_limits(connection: Connection, actor: Actor, level: str, name: str) -> Facts:
    """One subject's limits."""
    subject, shown = subject_of(connection, actor, level, name)
    own = limits.read_limits(connection).get(subject, ())
    return _facts(subject, shown, own, _taken(connection).get(subject, {}))


def subject_of(
    connection: Connection, actor: Actor, level: str, name: str, *, change: bool = False
) -> tuple[Subject, str]:
    """A subject by name or id, and its name.

    Raises:
        TidemillError: BAD_REQUEST, NOT_FOUND, FORBIDDEN.
    """
    if level not in list(Level):
        known = ", ".join(Level)
        raise bad_request("level", f"level must be one of {known}, got {level[:64]!r}")
    of = Level(level)
    if not name and of is not Level.SERVER:
        raise bad_request("name", f"name says which {level}")
    if of in (Level.SERVER, Level.ORGANISATION):  # whether it exists is not said to others
        if change:
            actor.check_admin(f"setting limits of the level {level}")
        elif not actor.everywhere:
            raise forbidden(
                f"limits of the level {level} are seen by the roles admin and auditor; "
                f"{actor.name} has {actor.role}"
            )
    if of is Level.SERVER:
        if name:
            raise bad_request(
                "name", f"the server has no name, and its limits count for all; got {name[:64]!r}"
            )
        return (of, ""), ""
    if of is Level.ORGANISATION:
        row = organisation_of(connection, name)
    elif of is Level.TEAM:
        row = team_of(connection, actor, name)
        if change:
            actor.check_admin("setting limits of a team")
    elif of is Level.USER:
        row = user_of(connection, actor, name)
        if change:
            actor.check_team(row.team_id or "", "setting limits of a user")
    else:
        return _key_subject(connection, actor, name, change=change)
    return (of, row.id), row.name


def _key_subject(
    connection: Connection, actor: Actor, name: str, *, change: bool
) -> tuple[Subject, str]:
    row = find(connection, KEYS, name, KEYS.c.revoked.is_(None))
    if row is not None and actor.sees(row.team_id):
        if change:
            actor.check_team(row.team_id, "setting limits of a key")
        return (Level.KEY, row.id), row.name
    if row is not None or not actor.everywhere:
        raise not_found("key", name)
    if change:
        actor.check_admin("setting limits of a key that is not in the database")
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise bad_request("name", f"name must have 1 to {MAX_NAME} printable characters")
    if name.startswith(_OUTSIDE):
        return (Level.KEY, name), name.partition(":")[2]
    subject = Level.KEY, f"key:{name}"
    if subject in limits.read_limits(connection):
        return subject, name
    raise TidemillError(
        ErrorKind.NOT_FOUND,
        f"there is no key {name[:80]!r} in the database; a key of a key file is written "
        f"key:{name[:80]}, and a client without a key addr:ADDRESS",
        param="key",
    )


def _row(connection: Connection, subject: Subject) -> Any:
    table = _TABLES.get(subject[0])
    return None if table is None else find(connection, table, subject[1])


def _shown(subject: Subject, row: Any) -> str:
    name: str = subject[1].removeprefix("key:").removeprefix("addr:") if row is None else row.name
    return name


def _written(subject: Subject) -> str:
    return f"{subject[0].value}:{subject[1]}"


def _values(of: Limits | list[Limit]) -> Facts:
    return {limit.name: limit.value for limit in of}


def _facts(subject: Subject, shown: str, own: Limits, taken: Mapping[str, int]) -> Facts:
    used = {
        limit.name: Limit(limit.measure, taken.get(limit.name, 0)).value
        for limit in own
        if limit.amount is not None and MEASURES[limit.measure].period in _WINDOWS
    }
    return {
        **{"level": subject[0].value, "name": shown, "id": subject[1]},
        **{"limits": _values(own), "used": used},
    }


_WINDOWS = (Period.DAY, Period.MONTH)


def _period(kind: Period, now: float) -> int:
    """The number of this day or month of UTC; 0 of other kinds."""
    day = int(time.strftime("%Y%m%d", time.gmtime(now)))
    return {Period.DAY: day, Period.MONTH: day // 100}.get(kind, 0)


def _taken(connection: Connection) -> dict[Subject, dict[str, int]]:
    """What servers have taken of this day's and month's limits, drawn ahead included."""
    now = time.time()
    periods = [_period(kind, now) for kind in _WINDOWS]
    rows = connection.execute(select(BALANCES).where(BALANCES.c.period.in_(periods)))
    found: dict[Subject, dict[str, int]] = {}
    for row in rows:
        if MEASURES[row.measure.removeprefix(SOFT)].period in _WINDOWS:
            found.setdefault((Level(row.level), row.subject), {})[row.measure] = row.taken
    return found
