"""What a key may do beyond its role: models, routes, addresses, sizes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from tidemill.server.errors import reject

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one key; the defaults forbid nothing.

    Attributes:
        models: patterns (``*``, ``?``, ``[abc]``) of the names it may use; empty: all.
        routes: patterns of the paths it may call; empty: all that its role may.
        networks: addresses it may be used from; empty: all.
        max_tokens: the most that one answer may have; None: what the context leaves.
        background: its requests wait for capacity that no others want.
        residency: where its requests must be served; empty: anywhere.
        no_content: nothing that its requests say or are answered is kept.
    """

    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    max_tokens: int | None = None
    background: bool = False
    residency: str = ""
    no_content: bool = False

    def allows_model(self, *names: str) -> bool:
        """Whether one of a model's names may be used. A version may be where its name may."""
        if not self.models:
            return True
        pattern = _compiled(self.models)
        return any(
            pattern.fullmatch(name) or pattern.fullmatch(name.rpartition("@")[0] or name)
            for name in names
            if name
        )

    def check_model(self, key: str, *names: str) -> None:
        """Raise a 403 unless one of a model's names may be used.

        Args:
            key: the key's name, for the message.
            names: the model's, first the one that was asked for.
        """
        if not self.allows_model(*names):
            raise reject(
                403,
                f"the key {key!r} may not use the model {names[0]!r}; it may use "
                f"{_listed(self.models)}",
                param="model",
                code="model_not_allowed",
            )

    def check_route(self, key: str, path: str) -> None:
        """Raise a 403 unless the path may be called."""
        if self.routes and not _compiled(self.routes).fullmatch(path):
            raise reject(
                403,
                f"the key {key!r} may not call this route; it may call {_listed(self.routes)}",
                code="route_not_allowed",
            )

    def check_address(self, key: str, host: str) -> None:
        """Raise a 403 unless the key may be used from the address."""
        if self.networks and not within(host, self.networks):
            # Which addresses it may be used from helps whoever stole it.
            raise reject(
                403,
                f"the key {key!r} may not be used from this address; an administrator can say "
                "from which",
                code="address_not_allowed",
            )

    def check_residency(self, key: str, region: str) -> None:
        """Raise a 403 unless its requests may be served in the region (empty: unknown)."""
        if self.residency and self.residency != region:
            raise reject(
                403,
                f"requests of the key {key!r} must be served in {self.residency!r}, and this "
                + (f"server is in {region!r}" if region else "server does not say where it is"),
                code="residency",
            )


OPEN = Policy()


@lru_cache(maxsize=4096)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{translate(pattern)})" for pattern in patterns))


def within(host: str, networks: Iterable[Network]) -> bool:
    """Whether an address lies in one of the networks; IPv4 addresses mapped into IPv6 count as
    IPv4. False for what is no address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def _listed(patterns: tuple[str, ...]) -> str:
    return ", ".join(repr(pattern) for pattern in patterns)
