"""The ledger over random schedules: nothing is exceeded, all is settled, nothing leaks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tidemill.contract.quotas import Level, parse_limits
from tidemill.server.quotas.account import Account
from tidemill.server.quotas.ledger import Cost, Exceeded, Ledger, Reservation
from tidemill.server.quotas.meters import NEVER, Meter, Now

DAY = 86400.0


@dataclass
class Clocks:
    monotonic: float = 0.0
    wall: float = 20_000 * DAY

    def read(self) -> Now:
        return Now(self.monotonic, self.wall)

    def sleep(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


@dataclass
class World:
    """A ledger in simulated time."""

    clocks: Clocks = field(default_factory=Clocks)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.clocks.read)

    def account(self, level: Level, name: str, **limits: object) -> Account:
        account = Account((level, name), name)
        account.follow(parse_limits(limits), self.clocks.read())
        return account


def meter_of(account: Account, name: str) -> Meter:
    return next(meter for meter in account.meters if meter.measure.name == name)


def used(account: Account, name: str, now: Now) -> int:
    meter = meter_of(account, name)
    return meter.amount - meter.remaining(now)


def cost(prompt: int = 10, most: int = 90, *, expected: int | None = None, money: int = 0) -> Cost:
    return Cost(1, prompt, most if expected is None else expected, most, money)


def test_the_tightest_level_decides_and_nothing_is_taken_where_one_refuses() -> None:
    world = World()
    team = world.account(Level.TEAM, "search", tpm=1000, rpm=100)
    key = world.account(Level.KEY, "ci", tokens_per_day=150)
    first = world.ledger.reserve((team, key), cost())
    with pytest.raises(Exceeded) as error:
        world.ledger.reserve((team, key), cost())
    assert error.value.account is key
    assert error.value.meter.measure.name == "tokens_per_day"
    now = world.clocks.read()
    assert used(team, "tokens_per_minute", now) == 100, "the refused one took nothing"
    assert used(team, "requests_per_minute", now) == 1
    first.settle(30, 0)
    assert used(key, "tokens_per_day", now) == 30
    world.ledger.reserve((team, key), cost())


def test_the_longest_wait_is_named() -> None:
    world = World()
    team = world.account(Level.TEAM, "search", tpm=100, rpm=60)
    key = world.account(Level.KEY, "ci", tokens_per_day=100)
    world.ledger.reserve((team, key), cost()).settle(100, 0)
    with pytest.raises(Exceeded) as error:
        world.ledger.reserve((team, key), cost())
    assert error.value.account is key
    assert {meter.measure.name for meter, _ in error.value.all} == {
        "tokens_per_minute",
        "tokens_per_day",
    }
    with pytest.raises(Exceeded) as never:
        world.ledger.reserve((team, key), cost(most=200))
    assert never.value.wait == NEVER


def test_a_reservation_ends_once() -> None:
    world = World()
    key = world.account(Level.KEY, "ci", concurrent_requests=1, tokens_per_day=100)
    held = world.ledger.reserve((key,), cost())
    held.settle(40, 0)
    held.settle(40, 0)
    held.release()
    now = world.clocks.read()
    assert used(key, "tokens_per_day", now) == 40
    assert used(key, "concurrent_requests", now) == 0
    assert world.ledger.open == 0


def test_what_is_refused_later_in_admission_costs_nothing_its_request_included() -> None:
    world = World()
    key = world.account(Level.KEY, "ci", rpm=1, tokens_per_day=100, money_per_day=1)
    world.ledger.reserve((key,), cost(money=10**9)).release()
    now = world.clocks.read()
    assert [used(key, m.measure.name, now) for m in key.meters] == [0, 0, 0]


def test_rates_take_the_estimate_and_are_charged_at_once_for_more() -> None:
    world = World()
    key = world.account(Level.KEY, "ci", tpm=1000, tokens_per_day=1000)
    held = world.ledger.reserve((key,), cost(expected=20, most=500))
    now = world.clocks.read()
    assert used(key, "tokens_per_minute", now) == 30
    assert used(key, "tokens_per_day", now) == 510
    for _ in range(50):
        held.progress(1)
    assert used(key, "tokens_per_minute", now) == 60
    held.settle(60, 0)
    assert used(key, "tokens_per_minute", now) == 60
    assert used(key, "tokens_per_day", now) == 60


def test_soft_limits_warn_and_hard_ones_of_the_same_measure_refuse() -> None:
    world = World()
    key = world.account(Level.KEY, "ci", tokens_per_day=300, soft_tokens_per_day=150)
    assert world.ledger.reserve((key,), cost()).warnings == ()
    ((account, meter),) = world.ledger.reserve((key,), cost()).warnings
    assert (account, meter.soft, meter.amount) == (key, True, 150)
    world.ledger.reserve((key,), cost())
    with pytest.raises(Exceeded):
        world.ledger.reserve((key,), cost())


def test_limits_change_under_requests_in_flight() -> None:
    world = World()
    key = world.account(Level.KEY, "ci", tokens_per_day=1000, concurrent_requests=5)
    held = [world.ledger.reserve((key,), cost()) for _ in range(3)]
    key.follow(parse_limits({"tokens_per_day": 250}), world.clocks.read())
    with pytest.raises(Exceeded):
        world.ledger.reserve((key,), cost())
    for one in held:
        one.settle(50, 0)
    assert used(key, "tokens_per_day", world.clocks.read()) == 150
    key.follow((), world.clocks.read())
    world.ledger.reserve((key,), cost(most=10**9)).release()


@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_never_exceed_and_settle_everything(seed: int) -> None:
    """Requests with honest maxima, cancelled, failed and finished in any order, over days."""
    rng = random.Random(seed)
    world = World()
    names = dict(tokens_per_day=3000, money_per_month="0.00001", concurrent_requests=6)
    server = world.account(Level.SERVER, "", tokens_per_day=9000, tpm=4000)
    teams = [world.account(Level.TEAM, f"t{i}", **names, tpm=1500, rpm=40) for i in range(2)]
    keys = [world.account(Level.KEY, f"k{i}", tokens_per_day=2000, tpm=900) for i in range(4)]
    accounts = [server, *teams, *keys]
    live: list[tuple[Reservation, list[Account], Cost, int]] = []
    settled: dict[tuple[str, int], int] = {}
    for _ in range(3000):
        world.clocks.sleep(rng.choice((0.0, 0.01, 1.0, 30.0, 4000.0)))
        day = int(world.clocks.wall // DAY)
        if rng.random() < 0.6:
            path = [server, rng.choice(teams), rng.choice(keys)]
            one = cost(rng.randrange(1, 100), rng.randrange(1, 400), money=rng.randrange(3000))
            try:
                held = world.ledger.reserve(path, one)
            except Exceeded as exceeded:
                assert exceeded.need > exceeded.meter.remaining(world.clocks.read())
                continue
            live.append((held, path, one, day))
        elif live:
            held, path, one, since = live.pop(rng.randrange(len(live)))
            end = rng.choice(("finish", "cancel", "refuse"))
            tokens = one.prompt + (one.most if end == "finish" else rng.randrange(one.most))
            if end == "refuse":
                held.release()
                tokens = 0
            else:
                held.settle(tokens, rng.randrange(one.money + 1))
            for account in path:
                key = (account.title, since)
                settled[key] = settled.get(key, 0) + tokens
        now = world.clocks.read()
        for account in accounts:
            for meter in account.meters:
                level = getattr(meter, "level", None)
                assert level is None or 0 <= level + 1e-6 <= meter.amount + 1e-3
                assert getattr(meter, "used", 0) <= meter.amount
                assert 0 <= getattr(meter, "held", 0) <= meter.amount
            spent = settled.get((account.title, day), 0)
            assert spent <= meter_of(account, "tokens_per_day").amount
            assert used(account, "tokens_per_day", now) >= spent
    for held, *_ in live:
        held.release()
    now = world.clocks.read()
    day = int(now.wall // DAY)
    assert world.ledger.open == 0
    for account in accounts:
        assert used(account, "tokens_per_day", now) == settled.get((account.title, day), 0)
    assert all(used(team, "concurrent_requests", now) == 0 for team in teams)
