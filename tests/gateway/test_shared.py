"""Gateways of one database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tidemill.base.clock import monotonic
from tidemill.gateway.asked import Asked, read
from tidemill.gateway.config import checked
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.shared import Shared
from tidemill.gateway.targets import Account
from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.storage import Storage
from tidemill.store.location import Location

Pair = list[tuple[Fleet, Shared]]
ROWS: list[dict[str, Any]] = [
    {"name": name, "url": f"http://{name}", "models": ["m"], "budget": 1, "price": {"output": 1e6}}
    for name in "abc"
]


@pytest.fixture
async def pair(location: Location) -> AsyncIterator[Pair]:
    """Two gateways that know of each other what the database says."""
    found, storages = [], []
    for _ in range(2):
        storage = Storage(location, DatabaseMetrics(CollectorRegistry()))
        storages.append(storage)
        fleet = Fleet(checked({"targets": ROWS}))
        found.append((fleet, Shared(fleet, storage)))
    await storages[0].opened(60)
    yield found
    for storage in storages:
        await storage.close()


def _asked(session: str) -> Asked:
    import dataclasses

    return dataclasses.replace(read("/v1/completions", b'{"model":"m"}'), session=session)


async def _talk(pair: Pair) -> None:
    for _, shared in (*pair, *pair):
        await shared.round()


async def test_sessions_stay_whichever_gateway_they_come_to(pair: Pair) -> None:
    (one, _), (two, _) = pair
    names = {}
    for i in range(8):
        route = await one.route(_asked(f"s{i}"))
        names[f"s{i}"] = route.target.name
        route.end()
    await _talk(pair)
    assert len(set(names.values())) > 1
    for session, name in names.items():
        route = await two.route(_asked(session))
        assert route.target.name == name
        route.end()
    assert not two.moved  # it was told, and tells nothing


async def test_what_one_finds_down_or_busy_the_others_do_not_try(pair: Pair) -> None:
    (one, _), (two, _) = pair
    now = monotonic()
    one.targets[0].health.failed(now, "no connection", down=True)
    one.targets[1].health.busy(now, 20.0)
    await _talk(pair)
    health = two.targets[0].health
    assert health.opened is not None and health.reason == "another gateway: no connection"
    assert 10 < two.targets[1].health.busy_until - monotonic() <= 20
    # It is heard once: a target that is found well is well.
    health.succeeded()
    await _talk(pair)
    assert health.opened is None and one.targets[0].health.opened is not None


async def test_a_budget_is_that_of_all_and_outlives_a_gateway(
    pair: Pair, location: Location
) -> None:
    (one, _), (two, _) = pair
    for fleet in (one, two):
        fleet.targets[0].spend(0, 0)  # it is today
        fleet.targets[0].account.own = 0.6
    assert two.targets[0].within_budget
    await _talk(pair)
    assert not one.targets[0].within_budget and not two.targets[0].within_budget
    assert two.targets[1].within_budget
    storage = Storage(location, DatabaseMetrics(CollectorRegistry()))
    again = Fleet(checked({"targets": ROWS}))
    await Shared(again, storage).round()
    assert again.targets[0].account.spent(again.targets[0].account.day) == pytest.approx(1.2)
    await storage.close()


def test_every_day_begins_anew() -> None:
    account = Account()
    account.turn(5)
    account.own, account.others["gw"] = 2.0, 3.0
    assert account.spent(5) == 5.0 and account.spent(6) == 0.0
