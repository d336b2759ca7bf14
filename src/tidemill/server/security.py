"""What locks a server: keys, certificates, origins, and where it may be reached from."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from tidemill.server.keys import KeyStore, NoKeys


@dataclass(frozen=True, slots=True)
class Security:
    """The locks of one server. The default is what suits an address of this machine alone.

    Attributes:
        keys: API keys.
        share_prefix_cache: clients with different keys may hit each other's cached prefixes, and
            so could measure what another one has asked.
        tls: what connections are encrypted with, or None.
        cors_origins: origins whose pages may use the API from a browser; ``*`` is all.
        own_hosts: host names that requests may be for, or None for all; see `auth.check_host`.
        trusted_proxies: addresses whose X-Forwarded-For is believed.
    """

    keys: KeyStore = field(default_factory=NoKeys)
    share_prefix_cache: bool = False
    tls: ssl.SSLContext | None = None
    cors_origins: tuple[str, ...] = ()
    own_hosts: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] = ()
