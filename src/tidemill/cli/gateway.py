"""`tidemill gateway`: many servers behind one address."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemill.cli import locks, options
from tidemill.cli.declared import option


def gateway(
    config: Path = option(
        ..., help="The gateway's file: [[targets]], [routing], [privacy] (docs/gateway.md)."
    ),
    host: str = options.SERVER["host"],
    port: int = options.SERVER["port"],
    drain_timeout: float = options.SERVER["drain_timeout"],
    database: str | None = options.SERVER["database"],
    database_outage: str = options.SERVER["database_outage"],
    api_key: tuple[str, ...] = locks.API_KEY,
    api_keys: Path | None = locks.API_KEYS,
    require_keys: bool = locks.REQUIRE_KEYS,
    share_prefix_cache: bool = locks.SHARE_PREFIX_CACHE,
    tls_cert: Path | None = locks.TLS_CERT,
    tls_key: Path | None = locks.TLS_KEY,
    tls_client_ca: Path | None = locks.TLS_CLIENT_CA,
    cors_origin: tuple[str, ...] = locks.CORS_ORIGIN,
    allowed_host: tuple[str, ...] = locks.ALLOWED_HOST,
    trusted_proxy: tuple[str, ...] = locks.TRUSTED_PROXY,
    insecure: bool = locks.INSECURE,
    recent_requests: int = options.SERVER["recent_requests"],
    otel: str = options.SERVER["otel"],
    otel_protocol: str | None = options.SERVER["otel_protocol"],
    otel_sample: float | None = options.SERVER["otel_sample"],
    log_level: str = options.SERVER["log_level"],
    log_format: str = options.SERVER["log_format"],
) -> None:
    """Serve the models of other servers through one address, on 127.0.0.1:8000.

    Each request goes to the server that is predicted to answer it first; what fails before it
    answers is asked of another one.
    """
    import os

    from tidemill.base.durations import duration_seconds
    from tidemill.base.log import log_line, set_up_logging
    from tidemill.base.stderr import guard_stderr
    from tidemill.cli.serving import say_line, with_files
    from tidemill.deployment.security import KEY_VARIABLE, SecuritySettings
    from tidemill.gateway.config import read
    from tidemill.gateway.run import GatewayOptions, serve
    from tidemill.library.home import default_home
    from tidemill.server.access.limits import Limits
    from tidemill.server.access.stored import StoredKeys
    from tidemill.server.transport.listen import bind
    from tidemill.server.transport.systemd import ServiceManager
    from tidemill.store.location import DATABASE_VARIABLE, location_of
    from tidemill.telemetry.otel_options import otel_options

    guard_stderr(log_line)
    set_up_logging("api", log_level, log_format)
    found = read(config)
    settings = SecuritySettings(
        api_key=api_key,
        api_keys=api_keys,
        require_keys=require_keys,
        region=None,
        oidc_issuer=None,
        oidc_audience=None,
        oidc_role_claim="",
        oidc_team_claim="",
        share_prefix_cache=share_prefix_cache,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        cors_origin=cors_origin,
        allowed_host=allowed_host,
        trusted_proxy=trusted_proxy,
        insecure=insecure,
    )
    os.environ.pop(KEY_VARIABLE, None)
    location = location_of(database, default_home())
    if "://" in os.environ.get(DATABASE_VARIABLE, ""):
        del os.environ[DATABASE_VARIABLE]
    stored, outage = None, duration_seconds(database_outage)
    if location is not None:
        stored = StoredKeys(location, default_home(), required=require_keys, outage=outage)
    made = GatewayOptions(
        found,
        limits=with_files(Limits(), say_line),
        security=settings.open(host, say_line, stored),
        drain_timeout=drain_timeout,
        database=location,
        shared=location is not None and database is not None,
        database_outage=outage,
        home=default_home(),
        recent_requests=recent_requests,
        file=config,
        otel=otel_options(otel, otel_protocol, otel_sample, False, os.environ),
    )
    listener = ServiceManager.of(os.environ).listener or bind(host, port)
    code = serve(made, listener, say=say_line)
    if code:
        sys.exit(code)
