"""Servers that share limits through a database: never exceeded, through kills and outages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Level, parse_limits
from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Role
from tidemill.server.errors import Rejection
from tidemill.server.quotas import treasury
from tidemill.server.quotas.bank import StoreBank
from tidemill.server.quotas.leased import SHARE, Leased, Want
from tidemill.server.quotas.meters import Now
from tidemill.server.quotas.quotas import Held, Quotas, RequestQuota
from tidemill.server.quotas.treasury import Entry, Treasury, Watcher
from tidemill.server.storage import Storage
from tidemill.store import limits as stored
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of

NOON = 1_800_000_000.0


class Opened:
    """Storage of an open database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def opened(self, patience: float) -> Database:
        return self.database


class Flaky(StoreBank):
    """A bank that fails before or after it commits, on request."""

    fail = ""
    draws = pruned = 0

    async def prune(self, wall: float) -> None:
        self.pruned += 1
        await super().prune(wall)

    async def renew(self, server: str, wall: float) -> int:
        if self.fail == "before":
            raise TidemillError(ErrorKind.DATABASE, "gone")
        return await super().renew(server, wall)

    async def draw(
        self, server: str, wall: float, entries: Sequence[Entry]
    ) -> Sequence[tuple[int, int]]:
        self.draws += 1
        if self.fail == "before":
            raise TidemillError(ErrorKind.DATABASE, "gone")
        found = await super().draw(server, wall, entries)
        if self.fail == "after":
            raise TidemillError(ErrorKind.DATABASE, "gone")
        return found


class Live(NamedTuple):
    """A request in flight, and its most tokens."""

    held: Held
    prompt: int
    most: int


@dataclass
class Server:
    """One server's quotas over a database."""

    database: Database
    limits: dict[str, object]
    level: Level = Level.KEY
    monotonic: float = 0.0
    outage: float = 3600.0
    later: float = 0.0  # by which both clocks have been put on
    live: list[Live] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bank = Flaky(cast(Storage, Opened(self.database)))
        self.treasury = Treasury(self.bank, self.now, self.outage)
        defaults = Defaults({self.level: parse_limits(self.limits)})
        self.quotas = Quotas(defaults, Prices(), clock=self.now, treasury=self.treasury)

    def now(self) -> Now:
        monotonic = asyncio.get_running_loop().time() + self.later
        return Now(monotonic, NOON + self.monotonic + self.later)

    def request(self, key: str = "ci") -> RequestQuota:
        found = self.quotas.request(Principal(f"key:{key}", key, Role.USER))
        assert found is not None
        return found

    async def reserve(self, prompt: int = 10, most: int = 20) -> Held:
        held = await self.request().reserve("m", prompt, most, most)
        self.live.append(Live(held, prompt, most))
        return held

    @property
    def meters(self) -> list[Leased]:
        return list(self.treasury.meters)

    async def kill(self) -> None:
        """As by SIGKILL: nothing is returned."""
        await self.treasury.stop()


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(treasury, "ROUND_SECONDS", 0.05)


@pytest.fixture
async def database(location: Location) -> AsyncIterator[Database]:
    found = Database(location)
    await found.open()
    yield found
    await found.close()


@asynccontextmanager
async def file_of(directory: Path) -> AsyncIterator[Database]:
    """A database whose rates refill by the tests' clock."""
    location = location_of(None, directory)
    assert location is not None
    found = Database(location)
    await found.open()
    yield found
    await found.close()


async def refused(server: Server, prompt: int, most: int = 0) -> dict[str, Any]:
    with pytest.raises(Rejection) as error:
        await server.reserve(prompt, most)
    problem = error.value.problem
    return {"code": problem.code, "status": problem.status, "message": problem.message}


async def test_one_server_uses_a_limit_to_the_last_token(database: Database) -> None:
    server = Server(database, {"tokens_per_day": 1000})
    for _ in range(33):
        (await server.reserve()).settle(10, 0, 20)
    assert (await refused(server, 11))["code"] == "insufficient_quota"
    (await server.reserve(10, 0)).settle(10, 0, 0)
    draws = server.bank.draws
    for _ in range(100):
        await refused(server, 5)
    assert server.bank.draws <= draws + 1, "refusals come from memory"
    await server.treasury.close()


async def test_a_storm_of_256_requests_admits_exactly_what_fits(database: Database) -> None:
    server = Server(database, {"tokens_per_day": 1000, "concurrent_requests": 300})
    found = await asyncio.gather(*(server.reserve() for _ in range(256)), return_exceptions=True)
    assert sum(isinstance(one, Held) for one in found) == 33
    assert server.bank.draws < 20, "draws are gathered"
    for live in server.live:
        live.held.settle(10, 0, 20)
    await server.treasury.close()


async def test_what_was_drawn_ahead_is_a_part_of_a_bucket_and_not_on_top_of_it(
    tmp_path: Path,
) -> None:
    async with file_of(tmp_path) as database:
        server = Server(database, {"tpm": 6400, "rpm": 6400})
        for _ in range(8):  # requests keep coming, so that something stays drawn; it is refilled
            (await server.reserve()).settle(10, 0, 20)
            server.later += 20
            await asyncio.sleep(0.06)
            left = server.request().standing()
            assert left.tokens is not None
            assert left.requests is not None
            assert left.tokens.remaining <= left.tokens.limit
            assert left.requests.remaining <= left.requests.limit
        assert any(meter.free > 0 for meter in server.meters), "or nothing was tested"
        assert left.tokens.reset == pytest.approx(0, abs=0.5)
        admitted = 0
        with pytest.raises(Rejection):
            while True:
                await server.reserve(64, 0)
                admitted += 64
        assert admitted <= 6400, "of one instant"
        assert admitted >= 6400 - 64
        assert (await refused(server, 6401))["code"] == "request_exceeds_limit"
        await server.treasury.close()


async def test_what_ends_unused_after_a_refill_fills_no_bucket_beyond_its_amount(
    tmp_path: Path,
) -> None:
    async with file_of(tmp_path) as database:
        server = Server(database, {"tpm": 6400})
        for _ in range(3):  # each holds all of a minute, and uses none of it
            await server.reserve(6400, 0)
            server.later += 60
        for live in server.live:
            live.held.release()
        left = server.request().standing().tokens
        assert left is not None
        assert left.remaining == 6400
        await server.reserve(6400, 0)
        assert (await refused(server, 64))["code"] == "rate_limit_exceeded"
        await server.treasury.close()


async def test_what_was_used_outlives_a_restart_exactly_and_a_kill_without_overshoot(
    database: Database,
) -> None:
    limits: dict[str, object] = {"tokens_per_day": 6400, "tpm": 6400}
    first = Server(database, limits)
    for _ in range(10):
        (await first.reserve()).settle(10, 0, 20)
    await first.reserve(100, 0)  # ended by the shutdown
    first.live[-1].held.release()
    await first.treasury.close()
    second = Server(database, limits)
    assert await _rest(second) == 6100
    (await second.reserve()).settle(10, 0, 20)
    await second.kill()
    third = Server(database, limits)
    rest = await _rest(third)
    assert 6070 - 2 * (6400 // SHARE + 30) <= rest <= 6070
    await third.treasury.close()


async def _rest(server: Server) -> int:
    """What is left of the day, as a request learns it."""
    (await server.reserve(1, 0)).release()
    now = server.now()
    return next(m for m in server.meters if m.measure.name == "tokens_per_day").remaining(now)


async def test_places_are_shared_and_void_only_with_their_server(database: Database) -> None:
    one, two = (Server(database, {"concurrent_requests": 4}) for _ in range(2))
    held = [await one.reserve() for _ in range(3)]
    await two.reserve()
    assert (await refused(two, 1))["code"] == "rate_limit_exceeded"
    for place in held:
        place.settle(1, 0, 1)
    await asyncio.sleep(0)
    await one.treasury.close()
    deadline = asyncio.get_running_loop().time() + 10
    while True:  # a refusal has the places looked at again
        try:
            await two.reserve()
            break
        except Rejection:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
    await two.kill()


@pytest.mark.parametrize("fail", ["before", "after"])
async def test_an_outage_is_spent_from_what_was_drawn(database: Database, fail: str) -> None:
    server = Server(database, {"tokens_per_day": 64_000})
    await server.reserve()
    server.bank.fail = fail
    served = 0
    while served < 1000:
        try:
            await server.reserve()
        except Rejection as error:
            assert error.problem.status == 503
            assert "the database does not answer" in error.problem.message
            break
        served += 1
    assert 10 < served < 200
    server.bank.fail = ""
    server.treasury.retry()
    await server.reserve(1000, 1000)
    await server.treasury.close()


async def test_limits_are_spent_without_the_database_for_a_configured_time(
    database: Database,
) -> None:
    server = Server(database, {"tokens_per_day": 64_000}, outage=0.1)
    await server.reserve()
    server.bank.fail = "before"
    server.meters[0].look()
    await asyncio.sleep(0.07)
    await server.reserve()  # from what was drawn
    await asyncio.sleep(0.2)
    assert await refused(server, 1) == {
        **{"code": "database_unavailable", "status": 503},
        "message": "the database of limits has not answered for longer than --database-outage; "
        "try again in 5 s",
    }
    server.bank.fail = ""
    await asyncio.sleep(0.1)
    await server.reserve()
    await server.treasury.close()


async def test_midnight_begins_a_day_for_what_was_drawn_too(database: Database) -> None:
    server = Server(database, {"tokens_per_day": 1000})
    before = await server.reserve(600, 0)
    (await server.reserve(400, 0)).settle(400, 0, 0)
    await refused(server, 1)
    server.monotonic = 86_400.0
    (await server.reserve(1000, 0)).settle(1000, 0, 0)
    before.settle(100, 0, 0)
    assert (await refused(server, 1))["code"] == "insufficient_quota"
    await server.treasury.close()


async def test_what_an_idle_server_had_drawn_is_returned(database: Database) -> None:
    one, two = (Server(database, {"tokens_per_day": 3200}) for _ in range(2))
    (await one.reserve(10, 0)).settle(10, 0, 0)
    deadline = asyncio.get_running_loop().time() + 10
    while one.meters[0].free:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    (await two.reserve(3190, 0)).settle(3190, 0, 0)
    await refused(two, 1)
    for server in (one, two):
        await server.treasury.close()


async def test_servers_know_how_many_share_a_limit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treasury, "RENEW_SECONDS", 0.05)
    servers = [Server(database, {"tpm": 60_000}) for _ in range(3)]
    for server in servers:
        await server.reserve()
    deadline = asyncio.get_running_loop().time() + 10
    while servers[0].treasury.servers != 3:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
    assert servers[0].bank.pruned == 1, "once a day"
    for server in servers:
        server.live[0].held.release()
        await server.treasury.close()


async def test_what_may_have_been_returned_is_not_spent(database: Database) -> None:
    """The store has it back, and the server was not told so."""
    one, two = (Server(database, {"tokens_per_day": 3200}) for _ in range(2))
    (await one.reserve(10, 0)).settle(10, 0, 0)
    assert one.meters[0].free > 0
    one.bank.fail = "after"
    deadline = asyncio.get_running_loop().time() + 10
    while one.treasury.answers:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
    (await two.reserve(3190, 0)).settle(3190, 0, 0)
    with pytest.raises(Rejection):
        await one.reserve(1, 0)
    for server in (one, two):
        await server.kill()


async def test_an_outage_is_no_busy_loop(database: Database) -> None:
    server = Server(database, {"tokens_per_day": 64_000, "soft_tokens_per_day": 10})
    await server.reserve()
    server.bank.fail = "before"
    await server.reserve()
    draws = server.bank.draws
    for meter in server.meters:
        meter.want(10**6)
    await asyncio.sleep(0.5)
    assert 1 <= server.bank.draws - draws <= 11
    await server.kill()


async def test_rates_go_on_through_an_outage_and_are_owed_afterwards(database: Database) -> None:
    server = Server(database, {"tpm": 6000})
    await server.reserve()
    (meter,) = server.meters
    meter.lost(Want(0, 0, 0, forced=False), 2, server.now())
    later = Now(server.now().monotonic + 30, NOON)
    meter.fits(1, later)
    assert meter.free >= 1500 - 200, "half the rate, for two servers"
    owed = meter.draw(later)
    assert owed is not None
    assert owed.forced
    assert owed.want == pytest.approx(1500, abs=5)
    await server.kill()


async def test_limits_set_in_the_database_are_followed(database: Database) -> None:
    server = Server(database, {})
    watcher = Watcher(server.bank, server.quotas.set_limits)
    assert server.quotas.request(Principal("key:ci", "ci", Role.USER)) is None
    subject = (Level.KEY, "key:ci")
    ten = parse_limits({"tokens_per_day": 10})
    await database.write(lambda c: stored.set_limits(c, subject, ten))
    await watcher.look()
    (await server.reserve(10, 0)).settle(10, 0, 0)
    await refused(server, 1)
    more = parse_limits({"tokens_per_day": 15})
    await database.write(lambda c: stored.set_limits(c, subject, more))
    await watcher.look()
    (await server.reserve(5, 0)).settle(5, 0, 0)
    await refused(server, 1)
    await server.treasury.close()


@pytest.mark.parametrize("seed", range(3))
async def test_random_servers_kills_and_outages_never_exceed(database: Database, seed: int) -> None:
    """Three servers share a day, a month of money and places; they are killed and replaced, the
    database fails before and after it commits, requests end in every way."""
    rng = random.Random(seed)
    limit = 3000
    limits: dict[str, object] = {"tokens_per_day": limit, "concurrent_requests": 12}
    servers = [Server(database, limits) for _ in range(3)]
    used = 0
    for step in range(300):
        if step % 6 == 0:
            await asyncio.sleep(0.02)  # rounds, which also return what is not needed
        server = servers[step % 3]
        server.bank.fail = rng.choice(("",) * 8 + ("before", "after"))
        action = rng.random()
        if action < 0.6:
            try:
                await server.reserve(rng.randrange(1, 100), rng.randrange(1, 200))
            except Rejection as error:
                assert error.problem.status in (429, 503)
        elif action < 0.97 and server.live:
            one = server.live.pop(rng.randrange(len(server.live)))
            tokens = rng.randrange(one.most + 1)
            if rng.random() < 0.2:
                one.held.release()
            else:
                one.held.settle(one.prompt, 0, tokens)
                used += one.prompt + tokens
        elif action > 0.98:
            await server.kill()
            used += sum(one.prompt + one.most for one in server.live)
            servers[step % 3] = Server(database, limits)
        live = (one for each in servers for one in each.live)
        assert used + sum(one.prompt + one.most for one in live) <= limit
    for server in servers:
        server.bank.fail = ""
        for one in server.live:
            used += one.prompt
            one.held.settle(one.prompt, 0, 0)
        await server.treasury.close()
        assert server.quotas.ledger.open == 0
    assert used <= limit
