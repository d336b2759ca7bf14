"""`[quotas]` of a deployment file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.quotas import Defaults, Level, parse_limits
from tidemill.deployment.deployment import Deployment
from tidemill.deployment.difference import difference
from tidemill.server.quotas.quotas import Quotas

FILE = """
[quotas.key]
rpm = 60
tokens_per_day = 1_000_000
[quotas.team]
money_per_month = 12.5
soft_money_per_month = "10"
"""


def test_limits_of_levels_are_read(deploy: Callable[..., Deployment]) -> None:
    quotas = deploy(FILE).quotas
    assert quotas.of(Level.KEY) == parse_limits({"rpm": 60, "tokens_per_day": 10**6})
    assert [limit.name for limit in quotas.of(Level.TEAM)] == [
        "money_per_month",
        "soft_money_per_month",
    ]
    assert not quotas.of(Level.SERVER)
    assert quotas
    assert not deploy("").quotas


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[quotas.key]\nrmp = 60", "quotas.key: quotas has no limit 'rmp'"),
        ("[quotas.key]\nrpm = -1", "rpm must be a whole number"),
        ("[quotas.person]\nrpm = 1", "quotas.person: is no key here"),
        ("[quota.key]\nrpm = 1", "quota: is no key here; did you mean quotas?"),
    ],
)
def test_what_is_wrong_is_named(deploy: Callable[..., Deployment], text: str, message: str) -> None:
    with pytest.raises(TidemillError) as error:
        deploy(text)
    assert message in str(error.value)


def test_a_reload_changes_limits_in_place(deploy: Callable[..., Deployment]) -> None:
    before, after = deploy(FILE), deploy(FILE.replace("rpm = 60", "rpm = 90"))
    found = difference(before, after)
    found.check()
    assert [change.key for change in found.server] == ["key"]
    told = []
    Quotas(before.quotas)
    before.quotas.on_change.append(lambda: told.append(True))
    before.quotas.become(after.quotas)
    assert told
    assert before.quotas.of(Level.KEY)[0].amount == 90
    before.quotas.become(Defaults())
    assert not before.quotas
