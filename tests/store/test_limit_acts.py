"""Limits as administrators, managers and auditors set and see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection

from tidemill.base.errors import TidemillError
from tidemill.store import audit, limit_acts
from tidemill.store.actors import Actor
from tidemill.store.database import Database
from tidemill.store.location import Location
from tidemill.store.tables.identity import KEYS
from tidemill.store.teams import create_team, create_user, team_of

ADMIN = Actor("cli:root")
AUDITOR = Actor("key:auditor", "auditor")

FEW = {"rpm": 5}
_KEY = {
    **{"role": "user", "created": 0, "disabled": False, "priority": 0, "weight": 1.0},
    "no_content": False,
}


@pytest.fixture
async def database(location: Location) -> AsyncIterator[Database]:
    found = Database(location)
    await found.open()

    def make(c: Connection) -> None:
        for team in ("search", "sales"):
            create_team(c, ADMIN, team)
            home = team_of(c, ADMIN, team).id
            create_user(c, ADMIN, f"{team}-user", "user", team)
            row = {**_KEY, "id": f"key-{team}", "name": f"{team}-ci", "team_id": home}
            c.execute(KEYS.insert().values(row))

    await found.write(make)
    yield found
    await found.close()


async def manager(database: Database) -> Actor:
    home = await database.read(lambda c: team_of(c, ADMIN, "search").id)
    return Actor("key:boss", "manager", home)


async def change(database: Database, actor: Actor, level: str, name: str, **limits: Any) -> Any:
    values = limits or FEW
    return await database.write(lambda c: limit_acts.change_limits(c, actor, level, name, values))


async def listed(database: Database, actor: Actor) -> list[tuple[str, str]]:
    found = await database.read(lambda c: limit_acts.list_limits(c, actor))
    return [(one["level"], one["name"]) for one in found]


async def test_managers_change_and_see_their_team_alone(database: Database) -> None:
    boss = await manager(database)
    everything = [
        ("server", ""),
        ("organisation", "default"),
        ("team", "search"),
        ("team", "sales"),
    ]
    everything += [("user", "sales-user"), ("key", "sales-ci"), ("key", "key:of-a-file")]
    for level, name in everything:
        with pytest.raises(TidemillError) as error:
            await change(database, boss, level, name)
        # That there is a server is no secret; what other teams have is.
        unseen = name.startswith("sales") or level == "key"
        assert error.value.kind == ("not_found" if unseen else "forbidden")
        await change(database, ADMIN, level, name)
    with pytest.raises(TidemillError, match="seen by the roles admin and auditor"):
        await database.read(lambda c: limit_acts.describe_limits(c, boss, "server", ""))
    assert (await change(database, boss, "key", "search-ci"))["id"] == "key-search"
    await change(database, boss, "user", "search-user")
    own = [("team", "search"), ("user", "search-user"), ("key", "search-ci")]
    assert await listed(database, boss) == own
    assert len(await listed(database, AUDITOR)) == len(everything) + 2
    for level, name in (*everything, *own):
        for actor in (AUDITOR, Actor("key:user", "user"), Actor("key:m", "metrics")):
            with pytest.raises(TidemillError):
                await change(database, actor, level, name)
    assert await listed(database, Actor("key:user", "user")) == []


async def test_a_change_is_an_act_of_the_audit_log(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = []
    monkeypatch.setattr(audit, "record", lambda c, *act: acts.append(act))
    await change(database, ADMIN, "key", "search-ci", tpm=5, soft_money_per_day="0.5")
    await change(database, ADMIN, "server", "", tpm="default", rpm="none")
    assert acts == [
        (
            *("cli:root", "limits.set", "key:key-search"),
            {"tokens_per_minute": 5, "soft_money_per_day": "0.50"},
        ),
        (
            *("cli:root", "limits.set", "server:"),
            {"requests_per_minute": "none", "tokens_per_minute": "default"},
        ),
    ]


async def test_names_that_attack_are_names(database: Database) -> None:
    for name in ("'; drop table limits; --", "a\r\nx-evil: 1", "\0", "x" * 300):
        for level in ("team", "user", "organisation"):
            with pytest.raises(TidemillError) as error:
                await change(database, ADMIN, level, name)
            assert error.value.kind == "not_found"
    with pytest.raises(TidemillError, match="which team"):
        await change(database, ADMIN, "team", "")
    with pytest.raises(TidemillError):
        await change(database, ADMIN, "key", "a\r\nx-evil: 1")
    with pytest.raises(TidemillError, match="there is no key"):
        await change(database, ADMIN, "key", "mistyped")
    found = await change(database, ADMIN, "key", "key:'; drop table limits; --")
    assert found["id"] == "key:'; drop table limits; --"
    assert await listed(database, ADMIN) == [("key", "'; drop table limits; --")]
