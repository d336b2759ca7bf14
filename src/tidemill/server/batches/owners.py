"""Who asked for a batch: described in the database, and again a principal when its lines run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from tidemill.contract.quotas import parse_limits
from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import KeyStore, Owner, Role

_PLAIN = (str, int, float, bool, type(None))


def described(principal: Principal) -> dict[str, Any]:
    """What of a principal is kept, as JSON."""
    values = {field.name: getattr(principal, field.name) for field in fields(principal)}
    plain = {name: value for name, value in values.items() if isinstance(value, _PLAIN)}
    limits = {limit.name: limit.value for limit in principal.limits}
    return {**plain, "owner": asdict(principal.owner), "limits": limits}


def owner_of(stored: Mapping[str, Any], keys: KeyStore) -> Principal | None:
    """The principal that `described` was given, with what its key may now; None: a key of the
    database that does not count any more."""
    found = principal_of(stored)
    if not found.key_id:
        return found
    key = keys.by_id(found.key_id)
    if key is None:
        return None
    return replace(
        found,
        role=key.role,
        weight=key.weight,
        owner=key.owner,
        policy=key.policy,
        limits=key.limits,
    )


def principal_of(stored: Mapping[str, Any]) -> Principal:
    """The principal that `described` was given, as far as it is kept."""
    known = {field.name for field in fields(Principal)}
    values = {name: value for name, value in stored.items() if name in known}
    role = values.get("role")
    values["role"] = None if role is None else Role(role)
    values["owner"] = Owner(**stored.get("owner", {}))
    values["limits"] = parse_limits(stored.get("limits", {}))
    return Principal(**values)
