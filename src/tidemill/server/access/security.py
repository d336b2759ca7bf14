"""Security settings of a server: keys, certificates, origins, host names and proxies."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.base.errors import TidemillError, config_error
from tidemill.base.log import get_logger
from tidemill.server.access.keys import KeyStore, NoKeys
from tidemill.server.access.stored import StoredKeys
from tidemill.server.transport.tls import Certificates

log = get_logger(__name__)

_ORIGIN = re.compile(r"\*|https?://[^/\s,*]+")


@dataclass(frozen=True, slots=True)
class Security:
    """Security settings of one server. The defaults suit a loopback address.

    Attributes:
        keys: API keys.
        share_prefix_cache: clients with different keys may hit each other's cached prefixes; they
            could learn each other's prompts from response times.
        certificates: for TLS, or None.
        cors_origins: origins whose pages may use the API from a browser; ``*`` is all.
        own_hosts: accepted values of Host, or None for all; see `auth.check_host`.
        trusted_proxies: addresses whose X-Forwarded-For is trusted.
        stored: those of `keys` that are in the database; None: none are.
        region: where this server is, for keys whose requests must be served somewhere; None: see
            `AuthMiddleware`.
    """

    keys: KeyStore = field(default_factory=NoKeys)
    share_prefix_cache: bool = False
    certificates: Certificates | None = None
    cors_origins: tuple[str, ...] = ()
    own_hosts: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] = ()
    stored: StoredKeys | None = None
    region: str | None = ""

    @property
    def reloadable(self) -> bool:
        """True when `reload` has something to read."""
        return self.keys.reloadable or self.certificates is not None

    async def reload(self) -> None:
        """Reload keys and certificates (SIGHUP). On an error, which is logged, the old ones stay.
        Keys are read in a thread, since the file can be large.
        """
        try:
            log.warning("%s", await asyncio.to_thread(self.keys.reload))
        except TidemillError as error:
            log.error("the API keys stay as they were: %s", error.message)
        if self.certificates is not None:
            try:
                self.certificates.reload()
                log.warning("the certificate was read again")
            except TidemillError as error:
                log.error("the certificate stays as it was: %s", error.message)


def check_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Origins as browsers send them.

    Raises:
        TidemillError: kind CONFIG.
    """
    found = tuple(origin.rstrip("/") for origin in origins)
    for origin in found:
        if not _ORIGIN.fullmatch(origin):
            raise config_error(
                "cors-origin",
                f"--cors-origin {origin!r} is no origin; one reads https://name or https://name:port",
            )
    return found


def check_proxies(addresses: Iterable[str]) -> tuple[str, ...]:
    """Addresses or networks of proxies.

    Raises:
        TidemillError: kind CONFIG.
    """
    found = tuple(addresses)
    for address in found:
        try:
            ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise config_error(
                "trusted-proxy", f"--trusted-proxy {address!r} is no address and no network"
            ) from None
    return found
