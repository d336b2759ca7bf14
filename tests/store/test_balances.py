"""Leases of limits, on SQLite and PostgreSQL: whoever takes, returns or dies, none is exceeded."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tidemill.contract.quotas import Level, parse_limits
from tidemill.store import balances, limits
from tidemill.store.balances import Draw, Drawn
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of

NOW = 1_800_000_000_000


async def opened(location: Location) -> Database:
    database = Database(location)
    await database.open()
    return database


def day(want: int, *, amount: int = 100, subject: str = "k", **more: object) -> Draw:
    return Draw("key", subject, "tokens_per_day", 20261126, amount, want, **more)  # type: ignore[arg-type]


async def drawn(database: Database, server: str, *wants: Draw, now: int = NOW) -> list[Drawn]:
    return await database.write(lambda c: balances.draw(c, server, now, wants))


async def test_a_limit_is_shared_and_never_exceeded(location: Location) -> None:
    database = await opened(location)
    assert await drawn(database, "a", day(60)) == [Drawn(60, 60)]
    assert await drawn(database, "b", day(60)) == [Drawn(40, 100)]
    assert await drawn(database, "b", day(1)) == [Drawn(0, 100)]
    assert await drawn(database, "a", day(-50)) == [Drawn(-50, 50)]
    assert await drawn(database, "b", day(70, least=60)) == [Drawn(0, 50)], "of no use"
    assert await drawn(database, "b", day(70, forced=True)) == [Drawn(70, 120)], "used already"
    assert await drawn(database, "a", day(5, subject="other")) == [Drawn(5, 5)]
    await database.close()


async def test_many_servers_at_once_take_exactly_the_limit(location: Location) -> None:
    database, other = await opened(location), await opened(location)
    rng = random.Random(1)

    async def server(name: str, of: Database) -> int:
        got = 0
        for _ in range(10):
            order = [day(rng.randrange(1, 30), amount=1000), day(3, subject="other")]
            rng.shuffle(order)
            (found,) = (
                one.granted
                for want, one in zip(order, await drawn(of, name, *order), strict=True)
                if want.subject == "k"
            )
            got += found
        return got

    work = [server(f"s{i}", (database, other)[i % 2]) for i in range(12)]
    assert sum(await asyncio.gather(*work)) == 1000
    await database.close()
    await other.close()


async def test_a_bucket_refills_and_loses_no_fraction(tmp_path: Path) -> None:
    location = location_of(None, tmp_path)  # PostgreSQL has a clock of its own
    assert location is not None
    database = await opened(location)

    def rate(want: int) -> Draw:
        return Draw("key", "k", "tokens_per_minute", 0, 10, want)

    assert (await drawn(database, "a", rate(10)))[0].granted == 10
    for second in range(1, 7):  # one comes back in six seconds, however often it is looked at
        (found,) = await drawn(database, "a", rate(5), now=NOW + second * 1000 - 1)
        assert found.granted == 0
    assert (await drawn(database, "a", rate(5), now=NOW + 6000))[0] == Drawn(1, 10)
    assert (await drawn(database, "a", rate(50), now=NOW + 10**9))[0] == Drawn(10, 10)
    (found,) = await drawn(database, "a", rate(1), now=NOW)  # the clock was wrong for days
    assert found.granted == 0
    assert (await drawn(database, "a", rate(1), now=NOW + 6000))[0].granted == 1
    await database.close()


async def test_places_of_a_server_that_is_gone_are_free(location: Location) -> None:
    database = await opened(location)

    def places(want: int, held: int) -> Draw:
        return Draw("key", "k", "concurrent_requests", 0, 10, want, held=held)

    assert (await drawn(database, "a", places(8, 0)))[0] == Drawn(8, 8)
    assert (await drawn(database, "b", places(8, 0)))[0] == Drawn(2, 10)
    assert (await drawn(database, "a", places(-3, 8)))[0] == Drawn(-3, 7)
    await database.write(lambda c: balances.leave(c, "a"))
    assert (await drawn(database, "b", places(8, 2)))[0] == Drawn(8, 10)
    if database.dialect == "sqlite":
        late = NOW + balances.VOID_MS + 1
        assert (await drawn(database, "c", places(10, 0), now=late))[0].granted == 10
        assert await database.write(lambda c: balances.renew(c, "c", late)) == 1
        assert await database.write(lambda c: balances.renew(c, "d", late)) == 2
    await database.close()


async def test_limits_are_set_lifted_and_removed(location: Location) -> None:
    database = await opened(location)
    ci, team = (Level.KEY, "ci"), (Level.TEAM, "'; drop table limits; --")
    before = await database.read(limits.read_version)
    set_ = parse_limits({"rpm": 5, "soft_tpm": 7, "money_per_day": "0.5"})
    assert await database.write(lambda c: limits.set_limits(c, ci, set_)) == set_
    other = parse_limits({"rpm": "none"})
    assert (await database.write(lambda c: limits.set_limits(c, ci, other)))[0].amount is None
    await database.write(lambda c: limits.set_limits(c, team, set_))
    await database.write(lambda c: limits.remove_limits(c, ci, [("tokens_per_minute", True)]))
    found = await database.read(limits.read_limits)
    assert [limit.name for limit in found[ci]] == ["requests_per_minute", "money_per_day"]
    assert found[team] == set_
    assert await database.read(limits.read_version) > before
    replaced = await database.write(lambda c: limits.set_limits(c, ci, other, replace=True))
    assert replaced == other
    await database.close()


async def test_old_balances_are_removed(location: Location) -> None:
    database = await opened(location)
    await drawn(database, "a", day(60))
    await database.write(lambda c: balances.prune(c, NOW * 2))
    assert await drawn(database, "a", day(100)) == [Drawn(100, 100)]
    await database.close()
