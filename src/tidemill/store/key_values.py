"""What a key may have: the values of `keys create` and `/admin/keys`, checked."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tidemill.base.errors import bad_request
from tidemill.store.teams import check_name, check_role

MAX_PATTERNS = 100
MAX_PATTERN_CHARS = 200
MAX_WEIGHT = 1e6
MAX_TOKENS = 2**31 - 1
LATEST = 253402300799
"""The last second of the year 9999: a later time is a mistake, such as milliseconds."""

PRIORITIES = ("normal", "background")

Priority = Literal["normal", "background"]


class KeyValues(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said of a key when it is made or changed; UNSET: nothing.

    Attributes:
        role: see `actors.ROLES`.
        expires: seconds since the epoch; None: never.
        disabled: it is refused until it is enabled again.
        models: patterns of the models that it may use; None: all.
        routes: patterns of the paths that it may call; None: all that its role may.
        addresses: networks that it may be used from; None: any.
        max_tokens: the most that one answer may have; None: what the context leaves.
        priority: ``background`` waits for capacity that no others want.
        weight: its share of the engine relative to other clients.
        residency: where its requests must be served; None: anywhere.
        no_content: nothing that its requests say or are answered is kept.
    """

    role: str | msgspec.UnsetType = msgspec.UNSET
    expires: int | msgspec.UnsetType | None = msgspec.UNSET
    disabled: bool | msgspec.UnsetType = msgspec.UNSET
    models: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    routes: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    addresses: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    priority: str | msgspec.UnsetType = msgspec.UNSET
    weight: float | msgspec.UnsetType = msgspec.UNSET
    residency: str | msgspec.UnsetType | None = msgspec.UNSET
    no_content: bool | msgspec.UnsetType = msgspec.UNSET

    def given(self) -> dict[str, Any]:
        """What is said, as columns of the table of keys.

        Raises:
            TidemillError: kind BAD_REQUEST naming the value.
        """
        said = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not msgspec.UNSET
        }
        return {name: _CHECKS[name](value) for name, value in said.items()}


DEFAULTS: dict[str, Any] = {
    **{"role": "user", "expires": None, "disabled": False},
    **{"models": None, "routes": None, "addresses": None, "max_tokens": None},
    **{"priority": 0, "weight": 1.0, "residency": None, "no_content": False},
}
"""The columns of a key of which nothing is said."""


def _role(value: str) -> str:
    check_role(value)
    return value


def _expires(value: int | None) -> int | None:
    if value is not None and not 0 < value <= LATEST:
        raise bad_request("expires", "expires must be seconds since the epoch, or null for never")
    return value


def _patterns(name: str) -> Any:
    def check(value: Sequence[str] | None) -> list[str] | None:
        if value is None:
            return None
        if not 0 < len(value) <= MAX_PATTERNS or any(
            not pattern.strip() or len(pattern) > MAX_PATTERN_CHARS or not pattern.isprintable()
            for pattern in value
        ):
            raise bad_request(
                name,
                f"{name} must be 1 to {MAX_PATTERNS} patterns of 1 to {MAX_PATTERN_CHARS} "
                "printable characters each",
            )
        if name == "routes" and any(pattern[0] not in "/*" for pattern in value):
            raise bad_request(name, "routes are patterns of paths, such as /v1/chat/*")
        return list(dict.fromkeys(value))

    return check


def _addresses(value: Sequence[str] | None) -> list[str] | None:
    if value is None:
        return None
    if not 0 < len(value) <= MAX_PATTERNS:
        raise bad_request("addresses", f"addresses must be 1 to {MAX_PATTERNS} networks")
    try:
        return [str(ipaddress.ip_network(address, strict=False)) for address in value]
    except ValueError:
        raise bad_request(
            "addresses", "addresses must be addresses or networks, such as 10.0.0.0/8"
        ) from None


def _max_tokens(value: int | None) -> int | None:
    if value is not None and not 1 <= value <= MAX_TOKENS:
        raise bad_request("max_tokens", f"max_tokens must be from 1 to {MAX_TOKENS}")
    return value


def _priority(value: str) -> int:
    if value not in PRIORITIES:
        raise bad_request("priority", f"priority must be one of {', '.join(PRIORITIES)}")
    return PRIORITIES.index(value)


def _weight(value: float) -> float:
    if not (math.isfinite(value) and 0 < value <= MAX_WEIGHT):
        raise bad_request("weight", f"weight must be above 0, to {MAX_WEIGHT:g}")
    return float(value)


def _residency(value: str | None) -> str | None:
    return None if value is None else check_name("residency", value)


def _same(value: Any) -> Any:
    return value


_CHECKS = {
    "role": _role,
    "expires": _expires,
    "disabled": _same,
    "models": _patterns("models"),
    "routes": _patterns("routes"),
    "addresses": _addresses,
    "max_tokens": _max_tokens,
    "priority": _priority,
    "weight": _weight,
    "residency": _residency,
    "no_content": _same,
}
