"""Requests of a pull: one client, retries with a bound, and errors that name host and remedy."""

from __future__ import annotations

import email.utils
import re
import ssl
import time
from collections.abc import Callable, Mapping
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidemill.base.errors import ErrorKind, TidemillError

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 30.0
# Tries in a row without a byte: before the first one (eight seconds), and after it (a minute).
_FIRST_TRIES = 5
_MAX_TRIES = 8
FIRST_WAIT_SECONDS = 0.5
# The longest wait that a server may demand.
MAX_WAIT_SECONDS = 300.0
# `"api";r=0;t=55`: seconds until the window ends (draft-ietf-httpapi-ratelimit-headers).
_RATE_LIMIT = re.compile(r";\s*t=(\d{1,9})\b")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class Interrupted(Exception):
    """A transfer that may succeed when it is tried again; the message is the reason.

    Attributes:
        wait: seconds that the server asks to wait, if it does.
    """

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def client(headers: Mapping[str, str] = {}, cafile: str | None = None) -> httpx.Client:
    """A client that follows redirects; headers of authorization stay with the first host."""
    import httpx

    return httpx.Client(
        headers={"user-agent": "tidemill", "accept-encoding": "identity", **headers},
        follow_redirects=True,
        timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        verify=True if cafile is None else ssl.create_default_context(cafile=cafile),
    )


def host(url: str) -> str:
    """The host in an address, for messages: an address may hold secrets."""
    return urlsplit(url).hostname or "?"


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's."""
    return host(url) in _LOOPBACK


def check_response(response: httpx.Response, what: str, remedy: str = "") -> None:
    """Raise unless a response carries the content that was requested.

    Args:
        response: its body is not read.
        what: the file or page, for the message.
        remedy: what helps if the server refuses access.

    Raises:
        Interrupted: it may help to try again.
        TidemillError: NOT_FOUND or UNAVAILABLE.
    """
    code, at = response.status_code, response.url.host
    first = response.history[0].url if response.history else response.url
    if first.scheme == "https" and response.url.scheme != "https":
        raise TidemillError(
            ErrorKind.UNAVAILABLE, f"{what}: {first.host} leads to an address that is not https"
        )
    if code in (200, 206):
        return
    busy = interruption(code, at, response.headers)
    if busy is not None:
        raise busy
    if code in (401, 403):
        refused = "asks for a login" if code == 401 else "refuses access"
        raise TidemillError(
            ErrorKind.NOT_FOUND,
            f"{what}: {at} {refused} ({code})" + (f"; {remedy}" if remedy else ""),
            param="source",
        )
    if code in (404, 410):
        raise TidemillError(
            ErrorKind.NOT_FOUND, f"{what}: {at} does not have it ({code})", param="source"
        )
    raise TidemillError(ErrorKind.UNAVAILABLE, f"{what}: {at} answered {code}", param="source")


def interruption(code: int, at: str, headers: Mapping[str, str]) -> Interrupted | None:
    """The interruption that a response's status means; None if it will not pass."""
    if code not in _TRANSIENT:
        return None
    return Interrupted(f"{at} answered {code}", _retry_after(headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After, given as a number or a date, or of a RateLimit's window."""
    text = headers.get("retry-after", "").strip()
    if text.isdigit():
        return float(text)
    window = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    if window is not None:
        return float(window[1])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


class Patience:
    """How long a transfer is tried again: it ends after some tries in a row without progress.

    Args:
        what: the file, for messages.
        stop: ends a wait.
        say: called with a line about a wait of some length.
    """

    def __init__(self, what: str, stop: Event, say: Callable[[str], None]) -> None:
        self._what = what
        self._stop = stop
        self._say = say
        self._tries = 0
        self._allowed = _FIRST_TRIES

    def progress(self) -> None:
        """Something arrived: the count begins anew."""
        self._tries = 0
        self._allowed = _MAX_TRIES

    def wait(self, failure: Interrupted) -> None:
        """Wait before the next try.

        Raises:
            TidemillError: UNAVAILABLE after too many tries, or for too long a wait.
        """
        self._tries += 1
        asked = failure.wait
        if self._tries >= self._allowed or (asked or 0.0) > MAX_WAIT_SECONDS:
            when = f"in {asked:.0f} seconds" if asked else "later"
            raise TidemillError(
                ErrorKind.UNAVAILABLE,
                f"{self._what}: {failure}; try again {when}: what was downloaded is kept",
                param="source",
                retryable=True,
            ) from failure
        seconds = FIRST_WAIT_SECONDS * 2 ** (self._tries - 1) if asked is None else asked
        if seconds >= 2.0:
            self._say(f"{self._what}: {failure}; trying again in {seconds:.0f} seconds")
        self._stop.wait(seconds)


def as_interrupted(error: Exception, url: str) -> Interrupted | TidemillError:
    """An error of the client library: a fault that may pass, or one that stays (a certificate)."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TidemillError(
                ErrorKind.UNAVAILABLE,
                f"the certificate of {host(url)} cannot be verified ({cause.verify_message}); "
                "set SSL_CERT_FILE to the authorities that this network uses",
            )
        cause = cause.__cause__ or cause.__context__
    return Interrupted(f"no connection to {host(url)} ({type(error).__name__})")


def get(
    session: httpx.Client, url: str, what: str, stop: Event, say: Callable[[str], None], **more: str
) -> httpx.Response:
    """A small page, tried again a few times.

    Args:
        more: headers.

    Raises:
        TidemillError: see `check_response`.
    """
    import httpx

    patience = Patience(what, stop, say)
    while True:
        try:
            response = session.get(url, headers=more)
            check_response(response, what)
            return response
        except Interrupted as error:
            patience.wait(error)
        except httpx.TransportError as error:
            failure = as_interrupted(error, url)
            if isinstance(failure, TidemillError):
                raise failure from error
            patience.wait(failure)
