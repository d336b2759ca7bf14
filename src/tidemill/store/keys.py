"""API keys in the database: made, changed, rotated, revoked, imported, listed.

The command line and `/admin/keys` both call these functions. Each is part of a transaction, checks
what the actor may, and leaves a row in the audit trail. A key keeps its id when it is rotated, so
that limits and usage stay with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, select

from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.contract.quotas import Level
from tidemill.store import settings
from tidemill.store.actors import Actor, forbidden
from tidemill.store.administrators import check_administered
from tidemill.store.key_values import DEFAULTS, PRIORITIES, KeyValues
from tidemill.store.limits import read_limits
from tidemill.store.secret import KeyHash, new_key, prefix_of
from tidemill.store.tables.identity import KEY_SECRETS, KEYS, ORGANISATIONS, TEAMS, USERS
from tidemill.store.teams import (
    Facts,
    check_name,
    conflict,
    find,
    not_found,
    noted,
    now,
    team_of,
    user_of,
)

MAX_OVERLAP = 90 * 86400
MAX_SECRETS = 8
"""Of one key at a time: every rotation leaves one until it expires."""

MAX_IMPORTED = 100_000

_ADMINS_ALONE = ("weight",)


class ImportedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a key file.

    Attributes:
        name: its name.
        sha256: of its secret.
        prefix: of its secret, or "".
        role, weight: as in the file.
    """

    name: str
    sha256: bytes
    prefix: str = ""
    role: str = "user"
    weight: float = 1.0


def create_key(
    connection: Connection,
    actor: Actor,
    hasher: KeyHash,
    name: str,
    values: KeyValues = KeyValues(),  # noqa: B008  (frozen)
    *,
    team: str | None = None,
    user: str | None = None,
) -> Facts:
    """Make a key. What is returned has its secret as ``key``, which nothing reveals again.

    Args:
        connection: in a writing transaction.
        actor: who acts.
        hasher: of the server's secret.
        name: unique among keys that are not revoked.
        values: what it may.
        team: name or id; None: the actor's, else that of `user`, else the default one.
        user: name or id of whom it belongs to; a key of a user has the user's role unless one is
            given.

    Raises:
        TidemillError: kinds BAD_REQUEST, NOT_FOUND, FORBIDDEN.
    """
    secret = new_key()
    row = _new(connection, actor, name, values, team, user)
    _add(connection, actor, hasher, row, hasher.of(secret), prefix_of(secret))
    return {**describe_key(connection, actor, row["id"]), "key": secret}


def _new(
    connection: Connection,
    actor: Actor,
    name: str,
    values: KeyValues,
    team: str | None,
    user: str | None,
) -> Facts:
    check_name("name", name)
    given = values.given()
    ends = given.get("expires")
    if ends is not None and ends <= now():
        raise bad_request("expires", "expires is in the past: nobody could use the key")
    owner = None if user is None else user_of(connection, actor, user)
    if owner is not None:
        given.setdefault("role", owner.role)
        team = team or owner.team_id
    row = {**DEFAULTS, **given}
    actor.check_role(row["role"])
    _check_values(actor, given)
    home = team_of(connection, actor, team)
    actor.check_team(home.id, "making a key")
    if find(connection, KEYS, name, KEYS.c.revoked.is_(None)) is not None:
        raise conflict("name", f"there is a key {name!r} already; rotate it, or revoke it first")
    return {
        **{"id": new_id("key"), "name": name, "team_id": home.id},
        **{"user_id": owner.id if owner else None, "created": now(), "revoked": None},
        **row,
    }


def _add(
    connection: Connection, actor: Actor, hasher: KeyHash, row: Facts, digest: bytes, prefix: str
) -> None:
    settings.check_secret(connection, hasher.fingerprint)
    taken = connection.execute(
        select(KEY_SECRETS.c.key_id).where(KEY_SECRETS.c.digest == digest)
    ).scalar()
    if taken is not None:
        raise conflict("key", f"the secret of {row['name']!r} is one of another key already")
    connection.execute(KEYS.insert().values(row))
    connection.execute(KEY_SECRETS.insert().values(_secret(row["id"], digest, prefix)))
    settings.put(connection, settings.KEYS_REQUIRED, "true")
    detail = {"name": row["name"], "role": row["role"], "team": row["team_id"]}
    noted(connection, actor, "key.create", row["id"], detail)


def _secret(key: str, digest: bytes, prefix: str) -> Facts:
    return {
        **{"digest": digest, "key_id": key, "prefix": prefix},
        **{"created": now(), "expires": None},
    }


def import_keys(
    connection: Connection,
    actor: Actor,
    hasher: KeyHash,
    keys: Sequence[ImportedKey],
    team: str | None = None,
) -> list[Facts]:
    """Take over keys of a key file; their secrets stay what they are. All or none.

    Raises:
        TidemillError: as of `create_key`; the message names the key.
    """
    actor.check_admin("importing keys")
    if len(keys) > MAX_IMPORTED:
        raise bad_request("keys", f"at most {MAX_IMPORTED} keys are imported at once")
    found = []
    for key in keys:
        values = KeyValues(role=key.role, weight=key.weight)
        row = _new(connection, actor, key.name, values, team, None)
        _add(connection, actor, hasher, row, hasher.of_sha256(key.sha256), key.prefix)
        found.append({"id": row["id"], "name": row["name"]})
    return found


def change_key(connection: Connection, actor: Actor, name: str, values: KeyValues) -> Facts:
    """Change what a key may; what is not said stays."""
    row = _changeable(connection, actor, name, "changing a key")
    given = values.given()
    _check_values(actor, given)
    if "role" in given:
        actor.check_role(given["role"])
    if given:
        connection.execute(KEYS.update().where(KEYS.c.id == row.id).values(given))
        noted(connection, actor, "key.change", row.id, given)
        param = next((name for name in ("role", "disabled", "expires") if name in given), "key")
        check_administered(connection, actor, now(), param, f"this change of the key {row.name!r}")
    return describe_key(connection, actor, row.id)


def rotate_key(
    connection: Connection, actor: Actor, hasher: KeyHash, name: str, overlap: int = 0
) -> Facts:
    """Give a key a new secret; what is returned has it as ``key``.

    Args:
        connection, actor, hasher: as of `create_key`.
        name: name or id.
        overlap: seconds for which the secret before still counts.
    """
    if not 0 <= overlap <= MAX_OVERLAP:
        raise bad_request("overlap", f"overlap must be from 0 to {MAX_OVERLAP} seconds")
    row = _changeable(connection, actor, name, "rotating a key")
    settings.check_secret(connection, hasher.fingerprint)
    ends = now() + overlap
    mine = KEY_SECRETS.c.key_id == row.id
    if not overlap:
        connection.execute(delete(KEY_SECRETS).where(mine))
    connection.execute(delete(KEY_SECRETS).where(mine, KEY_SECRETS.c.expires <= now()))
    later = KEY_SECRETS.c.expires.is_(None) | (KEY_SECRETS.c.expires > ends)
    connection.execute(KEY_SECRETS.update().where(mine, later).values(expires=ends))
    if len(connection.execute(select(KEY_SECRETS.c.digest).where(mine)).all()) >= MAX_SECRETS:
        raise bad_request(
            "overlap",
            f"the key has {MAX_SECRETS} secrets that still count; rotate it with overlap 0 to end "
            "them, or wait until one expires",
        )
    secret = new_key()
    values = _secret(row.id, hasher.of(secret), prefix_of(secret))
    connection.execute(KEY_SECRETS.insert().values(values))
    noted(connection, actor, "key.rotate", row.id, {"overlap": overlap})
    return {**describe_key(connection, actor, row.id), "key": secret}


def revoke_key(connection: Connection, actor: Actor, name: str) -> Facts:
    """End a key for good: its row stays for reports, its secrets are forgotten."""
    row = _changeable(connection, actor, name, "revoking a key")
    connection.execute(KEYS.update().where(KEYS.c.id == row.id).values(revoked=now()))
    connection.execute(delete(KEY_SECRETS).where(KEY_SECRETS.c.key_id == row.id))
    noted(connection, actor, "key.revoke", row.id, {})
    check_administered(connection, actor, now(), "key", f"revoking the key {row.name!r}")
    return describe_key(connection, actor, row.id)


def list_keys(
    connection: Connection, actor: Actor, *, team: str | None = None, revoked: bool = False
) -> list[Facts]:
    """The keys that the actor sees, by name; with `revoked` also those that were."""
    query = _described().order_by(KEYS.c.name, KEYS.c.created)
    if team is not None:
        query = query.where(KEYS.c.team_id == team_of(connection, actor, team).id)
    elif not actor.everywhere:
        query = query.where(KEYS.c.team_id == actor.team)
    if not revoked:
        query = query.where(KEYS.c.revoked.is_(None))
    return _with_secrets(connection, connection.execute(query).all())


def describe_key(connection: Connection, actor: Actor, name: str) -> Facts:
    """One key with its own limits, without its secret."""
    row = key_of(connection, actor, name)
    query = _described().where(KEYS.c.id == row.id)
    [found] = _with_secrets(connection, connection.execute(query).all())
    own = read_limits(connection).get((Level.KEY, row.id), ())
    return {**found, "limits": {limit.name: limit.value for limit in own}}


def key_of(connection: Connection, actor: Actor, name: str) -> Any:
    """The row of a key, by id or by the name of one that is not revoked, if the actor sees it."""
    row = find(connection, KEYS, name, KEYS.c.revoked.is_(None))
    if row is None or not actor.sees(row.team_id):
        raise not_found("key", name)
    return row


def _changeable(connection: Connection, actor: Actor, name: str, what: str) -> Any:
    row = key_of(connection, actor, name)
    actor.check_team(row.team_id, what)
    actor.check_role(row.role)  # a manager does not take over an administrator's key
    if row.revoked is not None:
        raise bad_request("key", f"the key {row.name!r} was revoked; make a new one")
    return row


def _check_values(actor: Actor, given: Facts) -> None:
    for name in _ADMINS_ALONE:
        if name in given and actor.role != "admin" and given[name] != DEFAULTS[name]:
            raise forbidden(f"{name} is set by administrators: it takes from other teams")


def _described() -> Any:
    return (
        select(
            KEYS,
            TEAMS.c.name.label("team"),
            ORGANISATIONS.c.name.label("organisation"),
            USERS.c.name.label("user"),
        )
        .join(TEAMS, TEAMS.c.id == KEYS.c.team_id)
        .join(ORGANISATIONS, ORGANISATIONS.c.id == TEAMS.c.organisation_id)
        .outerjoin(USERS, USERS.c.id == KEYS.c.user_id)
    )


def _with_secrets(connection: Connection, rows: Sequence[Any]) -> list[Facts]:
    secrets: dict[str, list[Facts]] = {}
    query = select(KEY_SECRETS)
    if len(rows) == 1:
        query = query.where(KEY_SECRETS.c.key_id == rows[0].id)
    for secret in connection.execute(query.order_by(KEY_SECRETS.c.created.desc())):
        facts = {"prefix": secret.prefix, "created": secret.created, "expires": secret.expires}
        secrets.setdefault(secret.key_id, []).append(facts)
    return [_shown(row, secrets.get(row.id, [])) for row in rows]


def _shown(row: Any, secrets: list[Facts]) -> Facts:
    found = dict(row._mapping)
    return {
        **{name: found[name] for name in ("id", "name")},
        "prefix": secrets[0]["prefix"] if secrets else "",
        **{name: found[name] for name in ("role", "organisation", "team", "user")},
        "state": _state(row),
        **{name: found[name] for name in ("created", "expires", "revoked", "disabled")},
        **{name: found[name] for name in ("models", "routes", "addresses", "max_tokens")},
        "priority": PRIORITIES[row.priority],
        **{name: found[name] for name in ("weight", "residency", "no_content")},
        "secrets": secrets,
    }


def _state(row: Any) -> str:
    if row.revoked is not None:
        return "revoked"
    if row.disabled:
        return "disabled"
    return "expired" if row.expires is not None and row.expires <= now() else "active"
