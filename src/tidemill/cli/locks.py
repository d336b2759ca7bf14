"""Access-control flags of `serve`: keys, TLS, origins, proxies, request limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.log import FORMATS
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from tidemill.server.access.security import Security

KEY_VARIABLE = "TIDEMILL_API_KEY"

API_KEY = option(
    (),
    "--api-key",
    envvar=KEY_VARIABLE,
    help="Key that clients must send as a Bearer token; repeatable.",
)
API_KEYS = option(
    None, "--api-keys", help="TOML or JSON file of keys with names, roles, weights; SIGHUP rereads."
)
SHARE_PREFIX_CACHE = option(
    False, "--share-prefix-cache", help="Let clients with different keys hit each other's prefixes."
)
TLS_CERT = option(None, help="PEM file of the server's certificate: serve HTTPS.")
TLS_KEY = option(None, help="PEM file of its private key, unless --tls-cert holds it.")
TLS_CLIENT_CA = option(
    None, help="PEM file of authorities; clients must show a certificate of theirs."
)
CORS_ORIGIN = option(
    (), help="Origin whose web pages may use the API ('*': all); repeatable. Default: none."
)
ALLOWED_HOST = option(
    (), help="Host name under which this server is reached without a key; repeatable."
)
TRUSTED_PROXY = option((), help="Address of a proxy whose X-Forwarded-For is believed; repeatable.")
INSECURE = option(False, "--insecure", help="Listen beyond this machine although there is no key.")
LIMIT = option(
    (), help="NAME=VALUE: another bound for requests, see docs/operations.md; repeatable."
)
LOG_FORMAT = option("text", choices=FORMATS, help="Of every line on stderr.")


@dataclass(frozen=True, slots=True)
class LockFlags:
    """The values of the access-control flags."""

    api_key: Sequence[str]
    api_keys: Path | None
    share_prefix_cache: bool
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    cors_origin: Sequence[str]
    allowed_host: Sequence[str]
    trusted_proxy: Sequence[str]
    insecure: bool

    def open(self, host: str, say: Callable[[str], None]) -> Security:
        """Check the flags and build the security settings of a server that listens on `host`.

        Raises:
            TidemillError: kind CONFIG: an invalid key or file, or a public address without
                access control.
        """
        from tidemill.base.errors import config_error
        from tidemill.server.access.keys import KeyStore, NoKeys, StaticKeys
        from tidemill.server.access.security import Security, check_origins, check_proxies
        from tidemill.server.transport.listen import is_loopback
        from tidemill.server.transport.tls import Certificates

        # Child processes, the engine included, must not inherit the key.
        os.environ.pop(KEY_VARIABLE, None)
        keys: KeyStore = NoKeys()
        if self.api_key or self.api_keys is not None:
            known = StaticKeys(self.api_key, self.api_keys)
            for note in known.notes:
                say(note)
            say(f"API keys: {len(known)}; every route but the probes wants one")
            keys = known
        certificates = None
        if self.tls_cert is not None:
            certificates = Certificates(self.tls_cert, self.tls_key, self.tls_client_ca)
        elif self.tls_key is not None or self.tls_client_ca is not None:
            raise config_error("tls-cert", "--tls-key and --tls-client-ca need --tls-cert")
        local = is_loopback(host)
        if not (local or keys.closed or self.tls_client_ca or self.insecure):
            raise config_error(
                "host",
                f"--host {host} can be reached from other machines and there is no API key: anyone "
                f"there could use and overload this server. Set {KEY_VARIABLE}, --api-key or "
                "--api-keys (or --tls-client-ca), or insist with --insecure",
            )
        if not (local or keys.closed or self.tls_client_ca):
            say(
                f"warning: --insecure on {host}: whoever reaches this machine can use the server, "
                f"for there is no API key ({KEY_VARIABLE} or --api-key sets one)"
            )
        own: tuple[str, ...] | None = None
        if local and not keys.closed and not self.insecure:
            own = tuple(name.lower() for name in (host, *self.allowed_host))
        return Security(
            keys=keys,
            share_prefix_cache=self.share_prefix_cache,
            certificates=certificates,
            cors_origins=check_origins(self.cors_origin),
            own_hosts=own,
            trusted_proxies=check_proxies(self.trusted_proxy),
        )
