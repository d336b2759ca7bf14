"""Keys, teams and users in the database, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.server.access.keys import Role
from tidemill.store import keys, settings, teams
from tidemill.store.actors import ROLES, Actor
from tidemill.store.administration import act
from tidemill.store.database import Database
from tidemill.store.key_values import KeyValues
from tidemill.store.location import Location
from tidemill.store.secret import KeyHash
from tidemill.store.snapshot import Snapshot, read_snapshot, read_version
from tidemill.store.tables.identity import KEY_SECRETS

ADMIN = Actor("cli:test")
HASH = KeyHash(b"0123456789abcdef")


@pytest.fixture
async def database(location: Location) -> AsyncIterator[Database]:
    found = Database(location)
    await found.open()
    yield found
    await found.close()


def _snapshot(connection: sa.Connection, now: int = 1) -> Snapshot:
    return read_snapshot(connection, now, HASH.fingerprint)


async def _create(database: Database, name: str, actor: Actor = ADMIN, **more: Any) -> Any:
    return await act(database, lambda c: keys.create_key(c, actor, HASH, name, **more))


async def _fails(kind: ErrorKind, call: Any, *words: str) -> None:
    with pytest.raises(TidemillError) as caught:
        await call
    assert caught.value.kind is kind, caught.value.message
    for word in words:
        assert word in caught.value.message


def test_roles_are_those_of_the_server() -> None:
    assert set(ROLES) == set(Role)


async def test_a_key_is_shown_once_and_found_by_its_hash(database: Database) -> None:
    before = await database.read(read_version)
    assert not (await database.read(_snapshot)).required
    values = KeyValues(models=["brook*"], addresses=["10.1.2.3/8"], max_tokens=5, no_content=True)
    made = await _create(database, "ann", values=values)
    assert re.fullmatch(r"tm-[A-Za-z0-9]{49}", made["key"])
    assert made["prefix"] == made["key"][:11]
    assert (made["team"], made["organisation"], made["role"]) == ("default", "default", "user")
    snapshot = await database.read(_snapshot)
    assert snapshot.required
    assert snapshot.version == await database.read(read_version) > before
    record = snapshot.keys[0]
    assert record.digest == HASH.of(made["key"])
    assert (record.id, record.name, record.ends) == (made["id"], "ann", None)
    assert (record.models, record.addresses) == (["brook*"], ["10.0.0.0/8"])
    assert (record.max_tokens, record.no_content, record.background) == (5, True, False)
    shown = await database.read(lambda c: keys.describe_key(c, ADMIN, "ann"))
    assert "key" not in shown
    assert shown == {k: v for k, v in made.items() if k != "key"}


async def test_a_stolen_database_has_no_usable_key(database: Database) -> None:
    """Neither the secret nor its plain hash: a guess cannot be tested without the server's."""
    secret = (await _create(database, "ann"))["key"]
    await act(database, lambda c: keys.rotate_key(c, ADMIN, HASH, "ann", 60))

    def everything(connection: sa.Connection) -> str:
        inspector = sa.inspect(connection)
        return repr(
            [
                list(connection.execute(sa.text(f'SELECT * FROM "{table}"')))
                for table in inspector.get_table_names()
            ]
        )

    found = await database.read(everything)
    plain = hashlib.sha256(secret.encode()).digest()
    for part in (secret, secret[3:-6], secret[11:], plain.hex(), repr(plain)[2:-1]):
        assert part not in found
    assert KeyHash(b"another secret...").of(secret) != HASH.of(secret)
    if database.location.path is not None:
        for file in Path(database.location.path).parent.glob("tidemill.db*"):
            data = file.read_bytes()
            assert secret[11:].encode() not in data
            assert plain not in data


async def test_rotation_overlaps_and_keeps_the_id(database: Database) -> None:
    first = await _create(database, "ann")
    second = await act(database, lambda c: keys.rotate_key(c, ADMIN, HASH, "ann", 600))
    assert second["id"] == first["id"]
    records = {r.digest: r for r in (await database.read(partial(_snapshot, now=1))).keys}
    assert set(records) == {HASH.of(first["key"]), HASH.of(second["key"])}
    ends = records[HASH.of(first["key"])].ends
    assert ends is not None
    assert records[HASH.of(second["key"])].ends is None
    later = await database.read(partial(_snapshot, now=ends))
    assert [r.digest for r in later.keys] == [HASH.of(second["key"])]
    third = await act(database, lambda c: keys.rotate_key(c, ADMIN, HASH, "ann"))
    now = await database.read(_snapshot)
    assert [r.digest for r in now.keys] == [HASH.of(third["key"])]
    for _ in range(keys.MAX_SECRETS - 1):
        await act(database, lambda c: keys.rotate_key(c, ADMIN, HASH, "ann", 600))
    with pytest.raises(TidemillError, match="overlap 0"):
        await act(database, lambda c: keys.rotate_key(c, ADMIN, HASH, "ann", 600))


END = 4_000_000_000


async def test_what_ends_a_key(database: Database) -> None:
    await act(database, lambda c: teams.create_team(c, ADMIN, "search"))
    await act(database, lambda c: teams.create_user(c, ADMIN, "bob", "user", "search"))
    for name in ("plain", "disabled", "revoked", "expired", "of-user"):
        more: dict[str, Any] = {"team": "search"}
        if name == "of-user":
            more["user"] = "bob"
        if name == "expired":
            more["values"] = KeyValues(expires=END)
        await _create(database, name, **more)

    async def counting(now: int = 50) -> set[str]:
        return {r.name for r in (await database.read(partial(_snapshot, now=now))).keys}

    assert await counting() == {"plain", "disabled", "revoked", "expired", "of-user"}
    assert await counting(END) == {"plain", "disabled", "revoked", "of-user"}
    versions = [await database.read(read_version)]
    steps: list[tuple[Callable[[sa.Connection], Any], str]] = [
        (lambda c: keys.change_key(c, ADMIN, "disabled", KeyValues(disabled=True)), "disabled"),
        (lambda c: keys.revoke_key(c, ADMIN, "revoked"), "revoked"),
        (lambda c: teams.change_user(c, ADMIN, "bob", disabled=True), "of-user"),
        (lambda c: teams.change_team(c, ADMIN, "search", disabled=True), "plain"),
    ]
    for step, ended in steps:
        assert ended in await counting(END)
        await act(database, step)
        assert ended not in await counting(END)
        versions.append(await database.read(read_version))
    assert versions == sorted(set(versions)), "a change that servers would not notice"
    assert (await database.read(_snapshot)).required, "a team without keys is not open"
    # A revoked key's name may be given again, and its row stays.
    await act(database, lambda c: teams.change_team(c, ADMIN, "search", disabled=False))
    again = await _create(database, "revoked")
    listed = await database.read(lambda c: keys.list_keys(c, ADMIN, revoked=True))
    assert [k["state"] for k in listed if k["name"] == "revoked"] == ["revoked", "active"]
    assert (await database.read(lambda c: keys.describe_key(c, ADMIN, "revoked")))["id"] == again[
        "id"
    ]


async def test_names_are_unique_also_at_once(database: Database) -> None:
    await _create(database, "ann")
    await _fails(ErrorKind.BAD_REQUEST, _create(database, "ann"), "already")
    made = await asyncio.gather(
        *(_create(database, "bob") for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(each, dict) for each in made) == 1
    for error in made:
        if not isinstance(error, dict):
            assert isinstance(error, TidemillError), error
            assert error.kind is ErrorKind.BAD_REQUEST


HOSTILE = [
    *("", " ", "a b", "'; DROP TABLE keys; --", 'x" OR "1"="1', "a\r\nSet-Cookie: x=1", "a\x00"),
    *("../../etc", "%s%n", "{}", "${jndi:x}", "<script>", "ann\u202e", "A" * 65, "-rf", "é"),
]


async def test_hostile_names_are_refused_and_harm_nothing(database: Database) -> None:
    for number, name in enumerate(HOSTILE):
        for make in (
            lambda c, n=name: keys.create_key(c, ADMIN, HASH, n),
            lambda c, n=name: teams.create_team(c, ADMIN, n),
            lambda c, n=name: teams.create_user(c, ADMIN, n),
            lambda c, n=name: teams.create_organisation(c, ADMIN, n),
        ):
            await _fails(ErrorKind.BAD_REQUEST, act(database, make))
        # Looked up they are only not found.
        for look in (keys.describe_key, teams.describe_user, teams.describe_team):
            await _fails(
                ErrorKind.NOT_FOUND, database.read(partial(look, actor=ADMIN, name=name or " "))
            )
        if name.isprintable() and name.strip():
            values = KeyValues(models=[name])
            made = await _create(database, f"k{number}", values=values)
            assert made["models"] == [name]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        (KeyValues(role="root"), "role"),
        (KeyValues(expires=0), "expires"),
        (KeyValues(expires=1_800_000_000_000), "expires"),  # milliseconds
        (KeyValues(models=["x"] * 101), "models"),
        (KeyValues(models=["a\nb"]), "models"),
        (KeyValues(models=[]), "models"),
        (KeyValues(routes=[]), "routes"),
        (KeyValues(addresses=[]), "addresses"),
        (KeyValues(residency=""), "residency"),
        (KeyValues(routes=["v1/chat"]), "routes"),
        (KeyValues(addresses=["10.0.0.300"]), "addresses"),
        (KeyValues(max_tokens=0), "max_tokens"),
        (KeyValues(priority="high"), "priority"),
        (KeyValues(weight=float("nan")), "weight"),
        (KeyValues(weight=0), "weight"),
        (KeyValues(residency="e u"), "residency"),
    ],
)
def test_wrong_values_are_named(values: KeyValues, param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        values.given()
    assert caught.value.param == param


async def test_a_manager_has_its_team_alone(database: Database) -> None:
    for team in ("mine", "other"):
        await act(database, lambda c, t=team: teams.create_team(c, ADMIN, t))
        await _create(database, f"key-{team}", team=team)
    mine = await database.read(lambda c: teams.describe_team(c, ADMIN, "mine"))
    await _create(database, "boss", values=KeyValues(role="admin"), team="mine")
    manager = Actor("key:m", "manager", mine["id"])
    made = await _create(database, "new", manager)
    assert made["team"] == "mine"
    listed = await database.read(lambda c: keys.list_keys(c, manager))
    assert {k["name"] for k in listed} == {"key-mine", "boss", "new"}
    assert [t["name"] for t in await database.read(lambda c: teams.list_teams(c, manager))] == [
        "mine"
    ]
    denied, hidden = ErrorKind.FORBIDDEN, ErrorKind.NOT_FOUND

    async def fails(kind: ErrorKind, work: Callable[[sa.Connection], Any]) -> None:
        await _fails(kind, act(database, work))

    await fails(hidden, lambda c: keys.create_key(c, manager, HASH, "x", team="other"))
    await fails(hidden, lambda c: keys.describe_key(c, manager, "key-other"))
    await fails(hidden, lambda c: keys.revoke_key(c, manager, "key-other"))
    await fails(hidden, lambda c: keys.list_keys(c, manager, team="other"))
    await fails(hidden, lambda c: teams.create_user(c, manager, "u", team="other"))
    for role in ("admin", "auditor", "metrics"):
        values = KeyValues(role=role)
        await fails(denied, lambda c, v=values: keys.create_key(c, manager, HASH, "x", v))
        await fails(denied, lambda c, v=values: keys.change_key(c, manager, "new", v))
        await fails(denied, lambda c, r=role: teams.create_user(c, manager, "u", r))
    await fails(denied, lambda c: keys.change_key(c, manager, "new", KeyValues(weight=9)))
    # An administrator's key of the same team is not its to rotate: it would get the secret.
    await fails(denied, lambda c: keys.rotate_key(c, manager, HASH, "boss"))
    await fails(denied, lambda c: keys.change_key(c, manager, "boss", KeyValues(role="user")))
    await fails(denied, lambda c: teams.create_team(c, manager, "third"))
    await fails(denied, lambda c: teams.change_team(c, manager, "mine", disabled=True))
    await fails(denied, lambda c: keys.import_keys(c, manager, HASH, []))
    nobody = Actor("key:n", "manager", "")
    await fails(hidden, lambda c: keys.revoke_key(c, nobody, "new"))


async def test_the_last_administrator_does_not_lock_everybody_out(database: Database) -> None:
    await act(database, lambda c: teams.create_user(c, ADMIN, "ann", role="admin"))
    root = await _create(database, "root", values=KeyValues(role="admin"), user="ann")
    itself = Actor("key:root", "admin", key=root["id"])
    acts: list[Callable[[sa.Connection, Actor], Any]] = [
        lambda c, who: keys.change_key(c, who, "root", KeyValues(role="user")),
        lambda c, who: keys.change_key(c, who, "root", KeyValues(disabled=True)),
        lambda c, who: teams.change_user(c, who, "ann", disabled=True),
        lambda c, who: teams.change_team(c, who, "default", disabled=True),
        lambda c, who: keys.revoke_key(c, who, "root"),
    ]
    for one in acts:
        change = partial(one, who=itself)
        await _fails(ErrorKind.BAD_REQUEST, act(database, change), "no key with the role admin")
    same = await database.read(lambda c: keys.describe_key(c, ADMIN, "root"))
    assert (same["role"], same["state"]) == ("admin", "active")
    # Another one of another team suffices, unless it cannot be used.
    await act(database, lambda c: teams.create_team(c, ADMIN, "ops"))
    await _create(database, "second", values=KeyValues(role="admin", disabled=True), team="ops")
    await _fails(ErrorKind.BAD_REQUEST, act(database, partial(acts[0], who=itself)))
    await act(database, lambda c: keys.change_key(c, itself, "second", KeyValues(disabled=False)))
    await act(database, partial(acts[-1], who=itself))
    # The commands need no key.
    await act(database, lambda c: keys.revoke_key(c, ADMIN, "second"))


async def test_an_auditor_sees_everything_and_changes_nothing(database: Database) -> None:
    await _create(database, "ann")
    auditor = Actor("key:a", "auditor")
    assert len(await database.read(lambda c: keys.list_keys(c, auditor))) == 1
    for work in (
        lambda c: keys.create_key(c, auditor, HASH, "x"),
        lambda c: keys.revoke_key(c, auditor, "ann"),
        lambda c: keys.rotate_key(c, auditor, HASH, "ann"),
        lambda c: keys.change_key(c, auditor, "ann", KeyValues(disabled=True)),
        lambda c: teams.create_user(c, auditor, "u"),
    ):
        await _fails(ErrorKind.FORBIDDEN, act(database, work))


async def test_keys_of_a_file_keep_their_secrets(database: Database) -> None:
    imported = [
        keys.ImportedKey(name=n, sha256=hashlib.sha256(n.encode()).digest(), weight=2.0)
        for n in ("one", "two")
    ]
    made = await act(database, lambda c: keys.import_keys(c, ADMIN, HASH, imported))
    assert [k["name"] for k in made] == ["one", "two"]
    found = {r.digest: r for r in (await database.read(_snapshot)).keys}
    assert found[HASH.of("one")].name == "one"
    assert found[HASH.of("one")].weight == 2.0
    twice = [keys.ImportedKey(name="three", sha256=hashlib.sha256(b"one").digest())]
    await _fails(
        ErrorKind.BAD_REQUEST, act(database, lambda c: keys.import_keys(c, ADMIN, HASH, twice))
    )
    # All or none.
    some = [keys.ImportedKey(name="new", sha256=b"x" * 32), imported[0]]
    await _fails(
        ErrorKind.BAD_REQUEST, act(database, lambda c: keys.import_keys(c, ADMIN, HASH, some))
    )
    assert len(await database.read(lambda c: c.execute(sa.select(KEY_SECRETS)).all())) == 2


async def test_another_servers_secret_is_noticed(database: Database) -> None:
    await _create(database, "ann")
    other = KeyHash(b"another secret !")
    for work in (
        lambda c: keys.create_key(c, ADMIN, other, "bob"),
        lambda c: keys.rotate_key(c, ADMIN, other, "ann"),
        lambda c: read_snapshot(c, 1, other.fingerprint),
    ):
        await _fails(ErrorKind.CONFIG, act(database, work), "TIDEMILL_SECRET")


async def test_every_act_is_recorded_with_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[str, str, str]] = []
    monkeypatch.setattr(
        "tidemill.store.audit.record",
        lambda c, actor, action, subject, detail: noted.append((actor, action, repr(detail))),
    )
    made = [
        await _create(database, "ann"),
        await act(database, lambda c: keys.rotate_key(c, ADMIN, HASH, "ann")),
    ]
    await act(database, lambda c: keys.change_key(c, ADMIN, "ann", KeyValues(disabled=True)))
    await act(database, lambda c: keys.revoke_key(c, ADMIN, "ann"))
    await act(database, lambda c: teams.create_team(c, ADMIN, "t", "org"))
    await act(database, lambda c: teams.change_team(c, ADMIN, "t", new_name="t2"))
    await act(database, lambda c: teams.create_user(c, ADMIN, "u"))
    await act(database, lambda c: teams.change_user(c, ADMIN, "u", role="manager"))
    assert [action for _, action, _ in noted] == [
        *("key.create", "key.rotate", "key.change", "key.revoke"),
        *("organisation.create", "team.create", "team.change", "user.create", "user.change"),
    ]
    assert all(actor == "cli:test" for actor, _, _ in noted)
    for one in made:
        assert one["key"] not in repr(noted)


def test_settings_are_read_back_by_name_alone() -> None:
    assert settings.IDENTITY != settings.KEYS_REQUIRED
