"""Price list: what tokens of a model cost, in exact integers.

Amounts of money are integers of a billionth of the currency unit (`NANO`), so that sums over
millions of requests are exact. A request's cost is rounded up once, to a whole billionth.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from tidemill.base.errors import config_error

NANO = 10**9
"""Amounts per unit of the currency."""

MILLION = 10**6
MAX_PRICE = 10**6
"""Highest price of a million tokens, in units of the currency."""

_MAX_CACHED = 4096


class Price(msgspec.Struct, frozen=True):
    """Prices of one model, in billionths of the currency unit for a million tokens.

    Attributes:
        input: of prompt tokens that are computed.
        cached_input: of prompt tokens found in the prefix cache.
        output: of generated tokens, reasoning included.
    """

    input: int = 0
    cached_input: int = 0
    output: int = 0

    def cost(self, prompt: int, cached: int, output: int) -> int:
        """Billionths of the currency unit for a request; `cached` counts among `prompt`."""
        millionths = (
            (prompt - cached) * self.input + cached * self.cached_input + output * self.output
        )
        return -(-millionths // MILLION)

    def most(self, prompt: int, output: int) -> int:
        """The highest cost of a request, whatever part of its prompt is cached."""
        dearest = max(self.input, self.cached_input)
        return -(-(prompt * dearest + output * self.output) // MILLION)


FREE = Price()


class Prices:
    """The prices of a server's models.

    Args:
        rules: by name of a model or pattern (``*``, ``?``). A whole name is preferred to patterns,
            and they apply in their order. A version ``name@2`` without a rule of its own has the
            price of its name.
        currency: for reports, such as ``USD``.
    """

    def __init__(self, rules: Mapping[str, Price] | None = None, currency: str = "USD") -> None:
        self.rules = dict(rules or {})
        self.currency = currency
        self._known: dict[str, Price] = {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    @classmethod
    def parse(
        cls,
        table: Mapping[str, Mapping[str, Any]],
        where: str = "prices",
        currency: str = "USD",
    ) -> Prices:
        """Prices from the tables of a deployment file: ``input``, ``cached_input`` and ``output``,
        per million tokens. Without ``cached_input``, cached tokens cost what others do.

        Raises:
            TidemillError: kind CONFIG naming the entry.
        """
        rules = {}
        for name, values in table.items():
            label = f"{where}.{name}"
            if not isinstance(values, Mapping):
                raise config_error(where, f"{label} must be a table with input and output")
            for key in values:
                if key not in Price.__struct_fields__:
                    known = ", ".join(Price.__struct_fields__)
                    raise config_error(where, f"{label} has no {key!r}; known are {known}")
            found = {key: _amount(value, f"{label}.{key}") for key, value in values.items()}
            found.setdefault("cached_input", found.get("input", 0))
            rules[name] = Price(**found)
        return cls(rules, currency)

    def become(self, other: Prices) -> None:
        """Take another list's entries, after a reload: for requests that end from now on."""
        self.rules, self.currency, self._known = other.rules, other.currency, {}

    def of(self, model: str) -> Price:
        """The price of a model; free where no rule applies."""
        known = self._known.get(model)
        if known is None:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            known = self._known[model] = self._find(model)
        return known

    def cost(self, model: str, prompt: int, cached: int, output: int) -> int:
        """Billionths of the currency unit for a request; see `Price.cost`."""
        return self.of(model).cost(prompt, cached, output) if self.rules else 0

    def _find(self, model: str) -> Price:
        rules = self.rules
        for name in (model, model.rpartition("@")[0]):
            if name in rules:
                return rules[name]
            for pattern, price in rules.items():
                if name and fnmatchcase(name, pattern):
                    return price
        return FREE


def money(text: object, where: str) -> int:
    """Billionths of the currency unit from a number of units.

    Raises:
        TidemillError: kind CONFIG naming `where`.
    """
    from decimal import Decimal  # where there are prices or budgets

    try:
        value = Decimal(str(text))
    except ArithmeticError:
        value = Decimal(-1)
    if isinstance(text, bool) or not value.is_finite() or value < 0:
        raise config_error(where, f"{where} must be an amount of money of at least 0, not {text!r}")
    return int((value * NANO).to_integral_value())


def money_text(amount: int) -> str:
    """An amount in units of the currency, with at least two decimals: ``12.50``."""
    whole, rest = divmod(abs(amount), NANO)
    digits = f"{rest:09d}".rstrip("0")
    return f"{'-' if amount < 0 else ''}{whole:,}.{digits:0<2}"


def _amount(value: object, where: str) -> int:
    amount = money(value, where)
    if amount > MAX_PRICE * NANO:
        raise config_error(where, f"{where} is at most {MAX_PRICE:,}, not {value}")
    return amount
