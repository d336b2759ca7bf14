"""Access-control flags of `serve`: keys, TLS, origins, proxies, request limits."""

from __future__ import annotations

from tidemill.cli.declared import option
from tidemill.cli.options import flag
from tidemill.deployment.settings import SECURITY, keyed

_SECURITY = keyed(SECURITY)

API_KEY = flag(_SECURITY["api_key"])
API_KEYS = flag(_SECURITY["api_keys"])
REQUIRE_KEYS = flag(_SECURITY["require_keys"])
REGION = flag(_SECURITY["region"])
SHARE_PREFIX_CACHE = flag(_SECURITY["share_prefix_cache"])
TLS_CERT = flag(_SECURITY["tls_cert"])
TLS_KEY = flag(_SECURITY["tls_key"])
TLS_CLIENT_CA = flag(_SECURITY["tls_client_ca"])
CORS_ORIGIN = flag(_SECURITY["cors_origin"])
ALLOWED_HOST = flag(_SECURITY["allowed_host"])
TRUSTED_PROXY = flag(_SECURITY["trusted_proxy"])
INSECURE = flag(_SECURITY["insecure"])
LIMIT = option(
    (),
    help="NAME=VALUE: another bound for requests, see docs/operations.md; repeatable.",
)
