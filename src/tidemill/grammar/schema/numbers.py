"""Numbers in the grammar library's arithmetic: doubles, and integers truncated from doubles.

A bound or constant that this arithmetic would change is replaced by an exact one that allows
nothing the schema forbids, or it is rejected.

- Integers are exact up to 2^53. Beyond that, a bound moves inward to the next double (at most 1,024
  away) if the remaining range is so wide that this is negligible (2^53); otherwise it is rejected.
  An integer under a bound beyond 10^18 stays within 64 bits. Constants between doubles are
  rejected.
- ``x < 12`` becomes ``x <= 11.9999999999999``: readers of the document may round longer decimals to
  12.
- Decimals of 16 or more digits are not parsed exactly: bounds move inward, constants are rejected.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

_EDGE = 2**63
_TOP = _EDGE - 1  # becomes 2^63 as a double, and saturates to this value in 64 bits
_BOTTOM = -(_EDGE - 1024)  # the library negates lower bounds, and -2^63 has no 64-bit negative
_WIDE = 2**53
_DIGITS = 10**18  # beyond this the library cannot write a range with only one bound

KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

_DIGITS_LOST = "{} has more digits than can be enforced exactly; at most 15 can"

# OpenAPI's integer formats.
INTEGER_FORMATS: dict[str, tuple[int, int]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}


class Inexact(ValueError):
    """The number of a keyword cannot be enforced exactly; `keyword` is its name."""

    def __init__(self, keyword: str, message: str) -> None:
        super().__init__(message)
        self.keyword = keyword


def check_constant(value: Any) -> str | None:
    """Why a value of const or enum cannot be written exactly, or None.

    An integer must be exact as a double and within 64 bits; a decimal has at most about 15 digits.
    """
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return None
    if isinstance(value, list):
        return next(filter(None, map(check_constant, value)), None)
    if isinstance(value, dict):
        return next(filter(None, map(check_constant, value.values())), None)
    if isinstance(value, float):
        if not math.isfinite(value):
            return "a number exceeds the range of a double"
        return None if is_read_exactly(value) else _DIGITS_LOST.format(value)
    if abs(value) < _WIDE or (abs(value) < _EDGE and int(float(value)) == value):
        return None
    return (
        f"the integer {str(value)[:40]} cannot be enforced exactly (beyond 2^53 only integers that "
        "are exact as a double can); use a string"
    )


def bounded(schema: dict[str, Any], extra: tuple[int, int] | None = None) -> None:
    """Replace a schema's bounds by equivalent ones that the library computes exactly, in place.

    Args:
        schema: its ``type`` decides between integers and doubles.
        extra: additional inclusive bounds for integers.

    Raises:
        Inexact: naming the keyword.
    """
    given = {key: schema.pop(key) for key in KEYWORDS if key in schema}
    if not given and extra is None:
        return
    for key, value in given.items():
        _check_bound(key, value)
    if given.get("exclusiveMinimum") is True:  # drafts 3 and 4
        given["exclusiveMinimum"] = given.pop("minimum", False)
    if given.get("exclusiveMaximum") is True:
        given["exclusiveMaximum"] = given.pop("maximum", False)
    found = {key: value for key, value in given.items() if value is not False}
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if types is not None and "integer" in types and "number" not in types:
        _integers(schema, found, extra)
    else:
        _doubles(schema, found)


def _check_bound(key: str, value: Any) -> None:
    if isinstance(value, bool) and key.startswith("exclusive"):
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Inexact(key, "a number is expected")
    if isinstance(value, float) and not math.isfinite(value):
        raise Inexact(key, "the bound exceeds the range of a double; leave it out")


def _integers(schema: dict[str, Any], found: dict[str, Any], extra: tuple[int, int] | None) -> None:
    lows = [(math.ceil(found["minimum"]), "minimum")] if "minimum" in found else []
    highs = [(math.floor(found["maximum"]), "maximum")] if "maximum" in found else []
    if "exclusiveMinimum" in found:
        lows.append((math.floor(found["exclusiveMinimum"]) + 1, "exclusiveMinimum"))
    if "exclusiveMaximum" in found:
        highs.append((math.ceil(found["exclusiveMaximum"]) - 1, "exclusiveMaximum"))
    if extra is not None:
        lows.append((extra[0], "format"))
        highs.append((extra[1], "format"))
    low, low_key = max(lows) if lows else (None, "minimum")
    high, high_key = min(highs) if highs else (None, "maximum")
    if low is not None and high is not None and low > high:
        schema["minimum"], schema["maximum"] = 1, 0
        return
    lowest = None if low is None else max(_up(low), _BOTTOM)
    highest = None if high is None else min(_down(high), _TOP)
    if lowest is not None and lowest >= _DIGITS and highest is None:
        highest, high_key = _TOP, low_key
    if highest is not None and highest <= -_DIGITS and lowest is None:
        lowest, low_key = _BOTTOM, high_key
    moved = low_key if lowest != low else high_key if highest != high else None
    if moved is not None:
        left = (_TOP if highest is None else highest) - (_BOTTOM if lowest is None else lowest)
        if left < _WIDE:
            raise Inexact(
                moved,
                "integers beyond 2^53 cannot be bounded exactly; use a string with a pattern, or "
                "bounds within it",
            )
    if lowest is not None:
        schema["minimum"] = lowest
    if highest is not None:
        schema["maximum"] = highest


def _up(value: int) -> int:
    """The least integer from `value` on that is exact as a double, if within 64 bits."""
    if abs(value) <= _WIDE or abs(value) >= _EDGE:
        return value
    near = float(value)
    return int(near if near >= value else math.nextafter(near, math.inf))


def _down(value: int) -> int:
    return value if value >= _TOP else -_up(-value)


def _doubles(schema: dict[str, Any], found: dict[str, Any]) -> None:
    for key, value in found.items():
        if abs(value) >= _EDGE:
            raise Inexact(
                key, "bounds of numbers can be enforced below 2^63; leave it out, or use integer"
            )
    lows = [_inward(found["minimum"], math.inf)] if "minimum" in found else []
    highs = [_inward(found["maximum"], -math.inf)] if "maximum" in found else []
    for key, ends, toward in (
        ("exclusiveMinimum", lows, math.inf),
        ("exclusiveMaximum", highs, -math.inf),
    ):
        if key in found:
            ends.append(_inward(found[key], toward, beyond=True))
    low, high = max(lows, default=None), min(highs, default=None)
    if low is not None and low >= _DIGITS and high is None:
        raise Inexact("minimum" if "minimum" in found else "exclusiveMinimum", _ONE_END)
    if high is not None and high <= -_DIGITS and low is None:
        raise Inexact("maximum" if "maximum" in found else "exclusiveMaximum", _ONE_END)
    bounds: dict[str, Any] = {}
    if low is not None:
        bounds["minimum"] = low
    if high is not None:
        bounds["maximum"] = high
    shorter = [v for v in _shorter(high or 0) if v > 0 and (low is None or v >= low)]
    shorter += [v for v in _shorter(low or 0) if v < 0 and (high is None or v <= high)]
    if shorter:
        either = [bounds, {"enum": shorter}]
        schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": either}]
    else:
        schema.update(bounds)


def _shorter(bound: int | float) -> list[float]:
    """Numbers that the library wrongly excludes: proper prefixes of an outer bound's digits.

    Under 2.25 it accepts 2.20 and 2.1 but not 2.2, because it expects a digit wherever the bound
    has one.
    """
    whole, _, decimals = format(Decimal(repr(bound)), "f").partition(".")  # no exponent
    return [float(f"{whole}.{decimals[:count]}") for count in range(1, len(decimals))]


_ONE_END = "a bound this large can be enforced only with a bound at the other end; add one"


def _inward(value: int | float, toward: float, *, beyond: bool = False) -> int | float:
    """The nearest bound from `value` toward `toward` that the library parses exactly.

    Args:
        value: less than 2^63 in magnitude.
        toward: an infinity.
        beyond: the value itself is excluded.
    """
    near = float(value)
    if near == 0 and beyond:  # the next double has 324 digits
        return math.copysign(_LEAST, toward)
    outside = near < value if toward > 0 else near > value
    if outside or (beyond and near == value):
        near = math.nextafter(near, toward)
    if near.is_integer() and abs(near) <= _WIDE:
        return int(near)
    if is_read_exactly(near):
        return near
    exact = Decimal(near)
    for digits in range(15, 0, -1):
        place = Decimal(1).scaleb(max(exact.adjusted() + 1 - digits, -22))
        found = exact.quantize(place, ROUND_CEILING if toward > 0 else ROUND_FLOOR)
        if abs(found) < _WIDE or float(found) == found:
            return float(found)
    raise AssertionError("one digit is exact below 2^63")


def is_read_exactly(value: float) -> bool:
    """The library's JSON parser converts the double's shortest decimal back to the same double.

    It scales the digits by a power of ten in floating point, which rounds once if the digits are an
    integer below 2^53, and twice otherwise. It writes these digits, which must be the exact number
    if a reader may parse them as an integer.
    """
    if value.is_integer() and Decimal(repr(value)) != Decimal(value):
        return False
    digits, exponent = Decimal(repr(abs(value))).as_tuple()[1:]
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits)))
    if whole >= _WIDE or not -_POWERS <= exponent <= _POWERS:
        return False
    power = float(10 ** abs(exponent))
    return (whole * power if exponent > 0 else whole / power) == abs(value)


_POWERS = 300
_LEAST = 1e-22
