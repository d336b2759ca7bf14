"""From an HTTP request to a `Caller`: client, deadline, cache salt and priority."""

from __future__ import annotations

from starlette.requests import Request

from tidemill.base.errors import bad_request
from tidemill.generation.caller import Caller
from tidemill.server.access.auth import principal_of

TIMEOUT_HEADER = "X-Request-Timeout"
MAX_TIMEOUT = 86400.0
MAX_SALT_CHARS = 256


def caller_of(
    request: Request,
    timeout: float | None,
    arrival: float,
    *,
    cache_salt: str | None = None,
    priority: int = 0,
    user: str | None = None,
) -> Caller:
    """The caller of a request.

    Args:
        request: with its principal.
        timeout: the body's field: seconds from `arrival` until the request expires. The header
            `X-Request-Timeout` means the same; the shorter of two applies.
        arrival: seconds of `base.clock.monotonic`.
        priority: among the requests of the same principal; smaller values run first.
        cache_salt: the body's field: requests with equal salts of one principal share prefixes.

        user: whom the client asks for; the user keeps its version of a model (docs/rollouts.md).

    Raises:
        TidemillError: kind BAD_REQUEST naming the field or header.
    """
    principal = principal_of(request)
    header = request.headers.get(TIMEOUT_HEADER)
    timeouts = []
    if timeout is not None:
        timeouts.append(_checked("timeout", timeout))
    if header is not None:
        timeouts.append(_checked(TIMEOUT_HEADER, _number(header)))
    if cache_salt is not None and not 1 <= len(cache_salt) <= MAX_SALT_CHARS:
        raise bad_request(
            "cache_salt",
            f"cache_salt must have 1 to {MAX_SALT_CHARS} characters, got {len(cache_salt)}",
        )
    begin_quota = getattr(request.state, "begin_quota", None)
    quota = None if begin_quota is None else begin_quota(principal)
    request.state.quota = quota  # for the headers of its answer
    caller = Caller(
        client=principal.client_id,
        weight=principal.weight,
        cache_salt=principal.salt_for(cache_salt),
        deadline=arrival + min(timeouts) if timeouts else None,
        priority=priority,
        user=user or "",
        background=getattr(request.state, "background", False) or principal.policy.background,
        quota=quota,
        max_tokens=principal.policy.max_tokens,
    )
    request.state.caller = caller
    return caller


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise bad_request(
            TIMEOUT_HEADER, f"{TIMEOUT_HEADER} must be a number of seconds, got {text[:64]!r}"
        ) from None


def _checked(name: str, seconds: float) -> float:
    if not 0.0 < seconds <= MAX_TIMEOUT:
        raise bad_request(
            name, f"{name} must be above 0 and at most {MAX_TIMEOUT:.0f} seconds, got {seconds:g}"
        )
    return seconds
