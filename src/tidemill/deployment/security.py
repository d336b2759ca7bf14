"""Access-control settings, and the security of a server that is built from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tidemill.server.access.keys import KeyStore
    from tidemill.server.access.security import Security
    from tidemill.server.access.stored import StoredKeys

KEY_VARIABLE = "TIDEMILL_API_KEY"


class SecuritySettings(msgspec.Struct, frozen=True):
    """The access-control settings; `deployment.settings.SECURITY` says what they mean."""

    api_key: Sequence[str]
    api_keys: Path | str | None
    require_keys: bool
    region: str | None
    oidc_issuer: str | None
    oidc_audience: str | None
    oidc_role_claim: str
    oidc_team_claim: str
    share_prefix_cache: bool
    tls_cert: Path | str | None
    tls_key: Path | str | None
    tls_client_ca: Path | str | None
    cors_origin: Sequence[str]
    allowed_host: Sequence[str]
    trusted_proxy: Sequence[str]
    insecure: bool

    def open(
        self,
        host: str,
        say: Callable[[str], None],
        stored: StoredKeys | None = None,
        *,
        unread: bool = False,
    ) -> Security:
        """Check the settings and build the security settings of a server that listens on `host`.

        Args:
            host: the address.
            say: called with each line for the operator.
            stored: keys of the database; None: there is none.
            unread: there is a database, which nobody has read yet: what depends on its keys is not
                checked. The result is not for a server.

        Raises:
            TidemillError: kind CONFIG: an invalid key or file, or a public address without
                access control.
        """
        from tidemill.base.errors import config_error
        from tidemill.server.access.keys import NoKeys, StaticKeys
        from tidemill.server.access.security import Security, check_origins, check_proxies
        from tidemill.server.access.stored import AllKeys
        from tidemill.server.transport.listen import is_loopback
        from tidemill.server.transport.tls import Certificates

        keys: KeyStore = NoKeys() if stored is None else stored
        if self.api_key or self.api_keys is not None:
            known = StaticKeys(self.api_key, _path(self.api_keys))
            for note in known.notes:
                say(note)
            say(f"API keys: {len(known)}; every route but the probes wants one")
            keys = known
            if stored is not None:
                stored.taken = lambda: known.names
                keys = AllKeys(known, stored)
        elif self.require_keys and stored is None and not unread:
            raise config_error(
                "require-keys",
                "--require-keys with --database none needs --api-key or --api-keys",
            )
        elif keys.closed and keys.settled:
            say("API keys: those of the database; every route but the probes wants one")
        if self.oidc_issuer is not None:
            keys = self._with_tokens(keys, stored)
            say(f"tokens of {self.oidc_issuer} are taken as keys")
        certificates = None
        if self.tls_cert is not None:
            certificates = Certificates(
                Path(self.tls_cert), _path(self.tls_key), _path(self.tls_client_ca)
            )
        elif self.tls_key is not None or self.tls_client_ca is not None:
            raise config_error("tls-cert", "--tls-key and --tls-client-ca need --tls-cert")
        local = is_loopback(host)
        if not (local or keys.settled or self.tls_client_ca or self.insecure):
            # A database server is asked later; what it says must not open this address.
            assert stored is not None
            stored.require()
            say("API keys: those of the database; every route but the probes wants one")
        if not (local or keys.closed or self.tls_client_ca or self.insecure or unread):
            raise config_error(
                "host",
                f"--host {host} can be reached from other machines and there is no API key: anyone "
                f"there could use and overload this server. Make one (tidemill keys create NAME), "
                f"set {KEY_VARIABLE}, --api-key or --api-keys (or --tls-client-ca), or insist with "
                "--insecure",
            )
        if not (local or keys.closed or self.tls_client_ca):
            say(
                f"warning: --insecure on {host}: whoever reaches this machine can use the server, "
                f"for there is no API key ({KEY_VARIABLE} or --api-key sets one)"
            )
        own: tuple[str, ...] | None = None
        if local and not (keys.closed and keys.settled) and not self.insecure:
            own = tuple(name.lower() for name in (host, *self.allowed_host))
        return Security(
            keys=keys,
            share_prefix_cache=self.share_prefix_cache,
            certificates=certificates,
            cors_origins=check_origins(self.cors_origin),
            own_hosts=own,
            trusted_proxies=check_proxies(self.trusted_proxy),
            stored=stored,
            region=self.region or "",
        )

    def _with_tokens(self, keys: KeyStore, stored: StoredKeys | None) -> KeyStore:
        from tidemill.base.errors import config_error
        from tidemill.server.access.oidc import Issuer, Tokens

        assert self.oidc_issuer is not None
        if not self.oidc_audience:
            raise config_error(
                "oidc_audience",
                "oidc_issuer needs oidc_audience: without it tokens for other services would count",
            )
        issuer = Issuer(
            self.oidc_issuer, self.oidc_audience, self.oidc_role_claim, self.oidc_team_claim
        )
        return Tokens(issuer, keys, _no_team if stored is None else stored.team)


async def _no_team(name: str) -> None:
    """Without a database there are no teams."""


def _path(text: Path | str | None) -> Path | None:
    return None if text is None else Path(text)
