"""Limits that are set in the middle of a day or month count what was used of it before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import gmtime, strftime
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.contract.prices import NANO
from tidemill.store import balances, limit_acts
from tidemill.store.actors import Actor
from tidemill.store.balances import Draw
from tidemill.store.count import OWNERS, SUMS
from tidemill.store.database import Database
from tidemill.store.location import Location
from tidemill.store.tables.usage import USAGE_HOURS

ADMIN = Actor("cli:root")
NOON = 1_795_694_400  # of 2026-11-26
DAY = 86400
OWN = {"key_id": "key:ci", "team_id": "t", "organisation_id": "o", "user_id": ""}


def hour(at: int, *, operation: str = "generate", key: str = "key:ci", **sums: int) -> Any:
    of = {**OWN, "key_id": key, "hour": at, "model": "m", "version": "", "operation": operation}
    return {**of, **dict.fromkeys(SUMS, 0), **sums}


USED = [
    hour(NOON, requests=5, failed=1, prompt=100, cached=60, generated=20, cost=NANO // 2),
    hour(NOON, operation="embed", requests=2, prompt=30, inputs=4),
    hour(NOON, operation="count", requests=50),
    hour(NOON, key="key:other", requests=1, prompt=7),
    hour(NOON - DAY, requests=10, prompt=1000, cost=NANO),
    hour(NOON - 30 * DAY, requests=10, prompt=1000, cost=NANO),  # in October
]


@pytest.fixture
async def database(location: Location, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    assert set(OWNERS) == set(OWN)
    clock = SimpleNamespace(time=lambda: NOON + 600.0, strftime=strftime, gmtime=gmtime)
    monkeypatch.setattr(limit_acts, "time", clock)
    found = Database(location)
    await found.open()
    await found.write(lambda c: c.execute(USAGE_HOURS.insert(), USED))
    yield found
    await found.close()


async def set_limits(database: Database, level: str, name: str, **limits: object) -> Any:
    found = await database.write(lambda c: limit_acts.change_limits(c, ADMIN, level, name, limits))
    return found["used"]


async def draw(database: Database, *, measure: str, period: int, **more: Any) -> tuple[int, int]:
    one = Draw("key", "key:ci", measure, period, 10**12, **more)
    (found,) = await database.write(lambda c: balances.draw(c, "a", NOON * 1000, [one]))
    return found.granted, found.taken


async def test_a_budget_that_is_set_counts_what_was_used_before(database: Database) -> None:
    limits = {"rpd": 100, "tpd": 10**6, "money_per_day": 9, "soft_money_per_month": 9, "rpm": 5}
    assert await set_limits(database, "key", "key:ci", **limits) == {
        **{"requests_per_day": 6, "tokens_per_day": 150},
        **{"money_per_day": "0.50", "soft_money_per_month": "1.50"},
    }
    assert await set_limits(database, "server", "", tpd=100) == {"tokens_per_day": 157}
    assert await set_limits(database, "key", "addr:1.2.3.4", tpd=1) == {"tokens_per_day": 0}
    of = {"measure": "tokens_per_day", "period": 20261126}
    assert await draw(database, **of, want=50) == (50, 200)
    # Lifted and set again: what is drawn stays, and what was used meanwhile counts.
    await set_limits(database, "key", "key:ci", tpd="none")
    assert (await set_limits(database, "key", "key:ci", tpd=900))["tokens_per_day"] == 200
    later = [hour(NOON + 3600, requests=1, prompt=100)]
    await database.write(lambda c: c.execute(USAGE_HOURS.insert(), later))
    assert (await set_limits(database, "key", "key:ci", tpd=900))["tokens_per_day"] == 250


async def test_a_limit_of_the_deployment_begins_with_what_was_used(database: Database) -> None:
    of = {"measure": "tokens_per_day", "period": 20261126}
    assert await draw(database, **of, want=50) == (50, 200)
    assert await draw(database, **of, want=50) == (50, 250), "once"
    month = {"measure": "money_per_month", "period": 202611}
    assert await draw(database, **month, want=1) == (1, NANO * 3 // 2 + 1)
    assert await draw(database, measure="tokens_per_day", period=20261127, want=5) == (5, 5)
    soft = {"measure": "soft_tokens_per_day", "period": 20261126}
    assert await draw(database, **soft, want=20, forced=True) == (20, 150), "may be recorded"
