"""Limits on what clients use: the table of measures, and how limits are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tidemill.base.errors import config_error
from tidemill.contract.prices import NANO, money, money_text

MAX_AMOUNT = 10**15
"""Highest amount of a limit, and of units of the currency."""

SOFT = "soft_"
"""Prefix of a soft limit's name: requests beyond it are answered, with a warning header."""

NONE = "none"
"""Value of a limit that is lifted where a default exists."""


class Level(StrEnum):
    """Whose use is limited; a request counts on each of its levels, and the tightest decides."""

    SERVER = "server"
    ORGANISATION = "organisation"
    TEAM = "team"
    USER = "user"
    KEY = "key"  # without API keys: a client's address


class Unit(StrEnum):
    """What a measure counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    MONEY = "money"  # in billionths of the currency unit


class Period(StrEnum):
    """What an amount is limited in."""

    MINUTE = "minute"  # a token bucket
    CONCURRENT = "concurrent"  # in flight
    DAY = "day"  # of UTC
    MONTH = "month"  # of UTC


class QuotaView(NamedTuple):
    """What a request took of one limit.

    Attributes:
        level, subject: whose limit, by name.
        measure, unit: its name, and what it counts.
        amount, reserved, remaining: of that; `remaining` after the reservation. Of a soft limit
            `remaining` may be 0: it refuses nothing.
        soft: see above.
    """

    level: str
    subject: str
    measure: str
    unit: str
    amount: int
    reserved: int
    remaining: int
    soft: bool


class Measure(msgspec.Struct, frozen=True):
    """One kind of limit.

    Attributes:
        name: in files, flags and columns.
        short: a shorter name that is read too.
        text: in messages, after an amount.
    """

    name: str
    unit: Unit
    period: Period
    text: str
    short: str = ""

    def shown(self, amount: int) -> str:
        """An amount of it, for people."""
        number = money_text(amount) if self.unit is Unit.MONEY else f"{amount:,}"
        return f"{number} {self.text}"


MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            *("requests_per_minute", Unit.REQUESTS, Period.MINUTE, "requests per minute", "rpm")
        ),
        Measure(*("tokens_per_minute", Unit.TOKENS, Period.MINUTE, "tokens per minute", "tpm")),
        Measure(*("concurrent_requests", Unit.REQUESTS, Period.CONCURRENT, "concurrent requests")),
        Measure(*("requests_per_day", Unit.REQUESTS, Period.DAY, "requests per day", "rpd")),
        Measure(*("tokens_per_day", Unit.TOKENS, Period.DAY, "tokens per day", "tpd")),
        Measure(*("money_per_day", Unit.MONEY, Period.DAY, "spent per day")),
        Measure(*("money_per_month", Unit.MONEY, Period.MONTH, "spent per month")),
    )
}
_SHORT = {measure.short: measure.name for measure in MEASURES.values() if measure.short}


class Limit(msgspec.Struct, frozen=True):
    """A limit on one measure.

    Attributes:
        measure: a name of `MEASURES`.
        amount: in the measure's unit; None: none, although there is a default.
        soft: requests beyond it are answered, with a warning.
    """

    measure: str
    amount: int | None
    soft: bool = False

    @property
    def name(self) -> str:
        """As it is written in files and flags."""
        return (SOFT if self.soft else "") + self.measure

    @property
    def value(self) -> int | str:
        """As it is written in files and flags."""
        if self.amount is None:
            return NONE
        if MEASURES[self.measure].unit is Unit.MONEY:
            return money_text(self.amount).replace(",", "")
        return self.amount

    def __str__(self) -> str:
        return MEASURES[self.measure].shown(self.amount or 0)


Limits = tuple[Limit, ...]
NO_LIMITS: Limits = ()


def parse_limit(name: str, value: object, where: str = "quotas") -> Limit:
    """A limit as it is written: ``tokens_per_minute``, ``soft_money_per_day``, ``rpm``.

    Args:
        name: of the measure, with the prefix of a soft one.
        value: a whole number; of money, any number; or "none".
        where: for errors.

    Raises:
        TidemillError: kind CONFIG naming the limit.
    """
    plain = name.replace("-", "_")
    soft = plain.startswith(SOFT)
    plain = plain.removeprefix(SOFT)
    measure = MEASURES.get(_SHORT.get(plain, plain))
    if measure is None:
        raise config_error(
            where, f"{where} has no limit {name[:64]!r}; there are {', '.join(MEASURES)}"
        )
    if value is None or value == NONE:
        return Limit(measure.name, None, soft)
    label = f"{where}: {name}"
    if measure.unit is Unit.MONEY:
        amount, most = money(value, label), MAX_AMOUNT // 10**6 * NANO
    else:
        amount, most = _whole(value, label), MAX_AMOUNT
    if amount > most:
        raise config_error(where, f"{label} is at most {Limit(measure.name, most)}, not {value}")
    return Limit(measure.name, amount, soft)


def parse_limits(table: Mapping[str, object], where: str = "quotas") -> Limits:
    """The limits of a table, in the order of the measures.

    Raises:
        TidemillError: kind CONFIG naming the limit.
    """
    return merged(parse_limit(name, value, where) for name, value in table.items())


def merged(*sets: Iterable[Limit]) -> Limits:
    """Limits of which the later ones replace earlier ones of the same measure and softness."""
    found = {(limit.measure, limit.soft): limit for limits in sets for limit in limits}
    return tuple(
        found[name, soft] for name in MEASURES for soft in (False, True) if (name, soft) in found
    )


class Defaults:
    """Limits of every subject of a level that has none of its own on a measure.

    Attributes:
        on_change: called after `become`.
    """

    def __init__(self, of: Mapping[Level, Limits] | None = None) -> None:
        self._of = dict(of or {})
        self.on_change: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return any(self._of.values())

    def of(self, level: Level) -> Limits:
        """The limits of a level."""
        return self._of.get(level, NO_LIMITS)

    def become(self, other: Defaults) -> None:
        """Take another's limits, after a reload; what is used stays used."""
        self._of = other._of
        for callback in self.on_change:
            callback()


def _whole(value: object, where: str) -> int:
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            number = int(str(value).replace("_", "").replace(",", ""))
            if number >= 0:
                return number
    except ValueError:
        pass
    raise config_error(where, f"{where} must be a whole number of at least 0, or none: {value!r}")


def check_subject(level: str, name: str) -> Level:
    """The level of a subject that limits are set for.

    Raises:
        TidemillError: kind CONFIG.
    """
    try:
        found = Level(level)
    except ValueError:
        known = ", ".join(Level)
        raise config_error(
            "level", f"there is no level {level[:64]!r}; there are {known}"
        ) from None
    if not name or len(name) > 256:
        raise config_error("name", "a name has 1 to 256 characters")
    return found
