"""All keys that count, as servers keep them in memory: one query when something has changed."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, or_, select

from tidemill.store import settings
from tidemill.store.tables.identity import KEY_SECRETS, KEYS, ORGANISATIONS, TEAMS, USERS


class KeyRecord(msgspec.Struct, frozen=True):
    """A secret with all that its key may; ids and names of whom it belongs to.

    Attributes:
        digest: as of `secret.KeyHash`.
        ends: seconds since the epoch when the secret or the key expires; None: never.
    """

    digest: bytes
    id: str
    name: str
    role: str
    ends: int | None
    organisation: str
    organisation_name: str
    team: str
    team_name: str
    user: str
    user_name: str
    models: list[str] | None
    routes: list[str] | None
    addresses: list[str] | None
    max_tokens: int | None
    background: bool
    weight: float
    residency: str | None
    no_content: bool


class TeamRecord(msgspec.Struct, frozen=True):
    """A team that is not disabled, for those who sign in elsewhere."""

    id: str
    name: str
    organisation: str
    organisation_name: str


class Snapshot(msgspec.Struct, frozen=True):
    """The keys at one time.

    Attributes:
        version: of the counter `settings.IDENTITY`.
        required: requests need a key; see `settings.KEYS_REQUIRED`.
        keys: that count, one for each secret.
        teams: that are not disabled.
    """

    version: int
    required: bool
    keys: tuple[KeyRecord, ...]
    teams: tuple[TeamRecord, ...]


def read_version(connection: Connection) -> int:
    """The number that differs once something has changed."""
    return settings.version(connection, settings.IDENTITY)


def read_snapshot(connection: Connection, now: int, fingerprint: str) -> Snapshot:
    """Read all keys that count at `now`, seconds since the epoch.

    Raises:
        TidemillError: kind CONFIG: the keys were hashed by another secret than the fingerprint's.
    """
    version = read_version(connection)
    required = settings.get(connection, settings.KEYS_REQUIRED) == "true"
    if required:
        settings.check_secret(connection, fingerprint)
    query = (
        select(
            KEYS,
            KEY_SECRETS.c.digest,
            KEY_SECRETS.c.expires.label("secret_expires"),
            TEAMS.c.name.label("team_name"),
            ORGANISATIONS.c.id.label("organisation_id"),
            ORGANISATIONS.c.name.label("organisation_name"),
            USERS.c.name.label("user_name"),
        )
        .join(KEY_SECRETS, KEY_SECRETS.c.key_id == KEYS.c.id)
        .join(TEAMS, TEAMS.c.id == KEYS.c.team_id)
        .join(ORGANISATIONS, ORGANISATIONS.c.id == TEAMS.c.organisation_id)
        .outerjoin(USERS, USERS.c.id == KEYS.c.user_id)
        .where(
            KEYS.c.revoked.is_(None),
            KEYS.c.disabled.is_(False),
            TEAMS.c.disabled.is_(False),
            or_(USERS.c.id.is_(None), USERS.c.disabled.is_(False)),
            or_(KEYS.c.expires.is_(None), KEYS.c.expires > now),
            or_(KEY_SECRETS.c.expires.is_(None), KEY_SECRETS.c.expires > now),
        )
    )
    of_teams = (
        select(
            *(TEAMS.c.id, TEAMS.c.name, TEAMS.c.organisation_id),
            ORGANISATIONS.c.name.label("organisation_name"),
        )
        .join(ORGANISATIONS, ORGANISATIONS.c.id == TEAMS.c.organisation_id)
        .where(TEAMS.c.disabled.is_(False))
    )
    return Snapshot(
        version,
        required,
        tuple(map(_record, connection.execute(query))),
        tuple(TeamRecord(*row) for row in connection.execute(of_teams)),
    )


def _record(row: Any) -> KeyRecord:
    ends = [end for end in (row.expires, row.secret_expires) if end is not None]
    return KeyRecord(
        digest=row.digest,
        id=row.id,
        name=row.name,
        role=row.role,
        ends=min(ends, default=None),
        organisation=row.organisation_id,
        organisation_name=row.organisation_name,
        team=row.team_id,
        team_name=row.team_name,
        user=row.user_id or "",
        user_name=row.user_name or "",
        models=row.models,
        routes=row.routes,
        addresses=row.addresses,
        max_tokens=row.max_tokens,
        background=bool(row.priority),
        weight=row.weight,
        residency=row.residency,
        no_content=row.no_content,
    )
