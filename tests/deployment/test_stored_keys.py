"""Which servers are open, by their address and the keys of their database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tidemill.base.errors import TidemillError
from tidemill.deployment.security import SecuritySettings
from tidemill.server.access.stored import StoredKeys
from tidemill.store import keys
from tidemill.store.actors import Actor
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of
from tidemill.store.secret import KeyHash


def _settings(**changes: Any) -> SecuritySettings:
    values: dict[str, Any] = dict.fromkeys(SecuritySettings.__struct_fields__)
    lists = dict.fromkeys(("api_key", "cors_origin", "allowed_host", "trusted_proxy"), ())
    switches = dict.fromkeys(("require_keys", "share_prefix_cache", "insecure"), False)
    return SecuritySettings(**{**values, **lists, **switches, **changes})


def _quiet(line: str) -> None:
    """Nobody reads it."""


def _sqlite(home: Path) -> Location:
    location = location_of(None, home)
    assert location is not None
    return location


def _elsewhere(home: Path) -> StoredKeys:
    location = location_of("postgresql://x@db.internal/y", home)
    assert location is not None
    return StoredKeys(location, home)


def test_without_a_key_only_this_machine_is_served(tmp_path: Path) -> None:
    local = _settings().open("127.0.0.1", _quiet, StoredKeys(_sqlite(tmp_path), tmp_path))
    assert not local.keys.closed
    assert local.own_hosts is not None
    with pytest.raises(TidemillError, match="tidemill keys create"):
        _settings().open("0.0.0.0", _quiet, StoredKeys(_sqlite(tmp_path), tmp_path))
    required = StoredKeys(_sqlite(tmp_path), tmp_path, required=True)
    assert _settings(require_keys=True).open("0.0.0.0", _quiet, required).keys.closed
    with pytest.raises(TidemillError, match="--database none"):
        _settings(require_keys=True).open("127.0.0.1", _quiet)


def test_a_key_in_the_file_is_enough(tmp_path: Path) -> None:
    async def create() -> None:
        database = Database(_sqlite(tmp_path))
        await database.open()
        hasher = KeyHash(b"0123456789abcdef")
        await database.write(lambda c: keys.create_key(c, Actor("cli:test"), hasher, "ann"))
        await database.close()

    asyncio.run(create())
    for host in ("127.0.0.1", "0.0.0.0"):
        found = _settings().open(host, _quiet, StoredKeys(_sqlite(tmp_path), tmp_path))
        assert found.keys.closed and found.keys.settled
        assert found.own_hosts is None


def test_a_database_server_never_opens_a_public_address(tmp_path: Path) -> None:
    public = _settings().open("0.0.0.0", _quiet, _elsewhere(tmp_path))
    assert public.keys.closed and public.keys.settled  # whatever it will say
    local = _settings().open("127.0.0.1", _quiet, _elsewhere(tmp_path))
    assert local.keys.closed and not local.keys.settled
    assert local.own_hosts is not None  # checked once it is known to be open
    insecure = _settings(insecure=True).open("0.0.0.0", _quiet, _elsewhere(tmp_path))
    assert not insecure.keys.settled


def test_keys_of_a_file_count_beside_them(tmp_path: Path) -> None:
    given = _settings(api_key=("file-key-0123456789",))
    found = given.open("127.0.0.1", _quiet, StoredKeys(_sqlite(tmp_path), tmp_path))
    assert found.keys.closed and found.keys.settled and found.keys.reloadable
    assert found.stored is not None
    assert found.stored.taken() == {"key-1"}


def test_an_issuer_needs_an_audience(tmp_path: Path) -> None:
    with pytest.raises(TidemillError, match="oidc_audience"):
        _settings(oidc_issuer="https://login.example").open("127.0.0.1", _quiet)
    claims = {"oidc_role_claim": "roles", "oidc_team_claim": "team"}
    found = _settings(oidc_issuer="https://login.example", oidc_audience="us", **claims)
    assert found.open("0.0.0.0", _quiet).keys.closed
