"""An answer up to its first part: until then it can still be asked of another target."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.gateway.config import RoutingConfig
from tidemill.gateway.fleet import Route
from tidemill.gateway.translate.table import translated
from tidemill.gateway.translate.translator import Translator, translator
from tidemill.gateway.wire.connection import Connection, Lost
from tidemill.gateway.wire.pool import Full
from tidemill.server.errors import Problem

log = get_logger(__name__)

MAX_WHOLE_BYTES = 64 << 20
"""Of an answer that is no stream."""

MAX_ERROR_BYTES = 1 << 16

BUSY = frozenset({429, 503, 529})
_OWN = frozenset({401, 402, 403, 407})
"""Statuses that say something of the gateway's key with the target, not of the client's request."""


class Failed(Exception):
    """A target did not answer; another one may.

    Attributes:
        problem: what the client is told if there is no other.
        reason: of that, in short.
    """

    def __init__(self, problem: Problem, reason: str) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.reason = reason


class Refused(Exception):
    """The target says that the request is wrong: no other target is asked.

    Attributes:
        status, body: of its answer.
        same: it is in the client's dialect.
    """

    def __init__(self, status: int, body: bytes, *, same: bool) -> None:
        super().__init__(status)
        self.status, self.body, self.same = status, body, same


@dataclass(slots=True)
class Opened:
    """An answer whose first part has come.

    Attributes:
        route: whose it is.
        connection: with the rest; None: `first` is all of it.
        content_type: as the target said.
        first: its first part.
        translator: of its parts; None: they are the client's dialect.
        headers: of the target's answer that the client gets.
    """

    route: Route
    connection: Connection | None
    content_type: bytes
    first: bytes
    translator: Translator | None
    headers: dict[str, str]
    _stack: AsyncExitStack

    async def aclose(self) -> None:
        """Give the connection back, or give the answer up."""
        await self._stack.aclose()


LOOP = 508
"""What a gateway answers to a request that it has sent itself."""

_PASSED = frozenset({b"x-tidemill-truncated", b"x-tidemill-cached", b"openai-processing-ms"})


async def open_answer(
    route: Route, headers: Mapping[bytes, bytes], routing: RoutingConfig
) -> Opened:
    """Send a request and wait for the first part of its answer.

    Raises:
        Failed: another target may be asked.
        Refused: none need be.
    """
    target, asked = route.target, route.asked
    there = None if target.kind.serves(asked.path) else translated(target.kind, asked.path)
    made = None if there is None else translator(asked, target.named(asked.model))
    async with AsyncExitStack() as stack:
        try:
            if made is None:
                data = target.request(asked, headers)
            else:
                assert there is not None
                data = target.post(there, made.body, headers)
            seconds = routing.first_seconds
            if asked.deadline is not None:
                seconds = min(seconds, max(0.01, asked.deadline - monotonic()))
            async with asyncio.timeout(seconds):
                connection = await stack.enter_async_context(target.pool.exchange(data))
                status = await connection.head()
                kind = _header(connection, b"content-type")
                if status != 200:
                    await _raise(route, connection, status, same=made is None)
                stream = asked.stream and (b"stream" in kind or b"ndjson" in kind)
                if stream:
                    first = await connection.read()
                    if not first:
                        raise Lost("the target's stream is empty")
                else:
                    first = await connection.read_all(MAX_WHOLE_BYTES)
        except Full:
            route.end()
            raise _unavailable(route, "all its connections are in use") from None
        except TimeoutError:
            route.end()
            target.health.failed(monotonic(), "no answer in time")
            raise _unavailable(route, f"it did not answer within {seconds:.0f} s", 504) from None
        except Lost as lost:
            route.end()
            if target.health.failed(monotonic(), str(lost), down=lost.unsent):
                log.warning("target %s is taken out: %s", target.name, lost)
            raise _unavailable(route, str(lost)) from None
        except asyncio.CancelledError:
            route.abandon()
            raise
        except (Failed, Refused):
            route.end()
            raise
        except BaseException:
            route.abandon()
            raise
        target.health.succeeded()
        route.first()
        passed = {
            name.decode(): value.decode("latin-1")
            for name, value in connection.headers
            if name in _PASSED
        }
        return Opened(
            route,
            connection if stream else None,
            kind,
            first,
            made,
            passed,
            stack.pop_all(),
        )
    raise AssertionError("unreachable")


async def _raise(route: Route, connection: Connection, status: int, *, same: bool) -> None:
    """Raise what another status than 200 means."""
    body = await connection.read_all(MAX_ERROR_BYTES)
    health, now = route.target.health, monotonic()
    after = _seconds(_header(connection, b"retry-after"))
    if status in BUSY:
        if after is None and status == 503:
            health.failed(now, "503")
        else:
            health.busy(now, after or 1.0)
        raise Failed(_busy(route, status, after or 1.0), f"it is busy ({status})")
    if status in _OWN:
        log.error("target %s: %d: check its key (key_env)", route.target.name, status)
        health.failed(now, f"status {status}")
        raise _unavailable(route, f"it does not take the gateway's key ({status})", 502)
    if status >= 500 or status in (404, 405) or status < 400:
        # 404: another target may have the model, or the route.
        if status >= 500:
            health.failed(now, f"status {status}")
        if status == LOOP:
            log.error("target %s: its url leads back to this gateway", route.target.name)
            raise _unavailable(route, "its url leads back to this gateway", 502)
        raise _unavailable(route, f"it answered with the status {status}", 502)
    health.succeeded()
    raise Refused(status, body, same=same)


def _busy(route: Route, status: int, seconds: float) -> Problem:
    after = str(max(1, round(seconds + 0.5)))
    return Problem(
        429 if status == 429 else 503,
        "rate_limit_error" if status == 429 else "server_error",
        f"the target {route.target.name} is busy; try again in {after} s",
        code="overloaded",
        headers={"Retry-After": after},
    )


def _unavailable(route: Route, reason: str, status: int = 502) -> Failed:
    message = f"the target {route.target.name} failed: {reason}; try again"
    headers = {"Retry-After": "1"}
    problem = Problem(status, "server_error", message, None, "target_failed", headers)
    return Failed(problem, reason)


def message_of(body: bytes) -> str:
    """The message of another server's error, of whatever dialect."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "the target refused the request"
    if isinstance(found, dict):
        error = found.get("error", found.get("message", found.get("detail")))
        if isinstance(error, dict):
            error = error.get("message")
        if isinstance(error, str):
            return error[:2000]
    return "the target refused the request"


def _header(connection: Connection, name: bytes) -> bytes:
    return next((value for found, value in connection.headers if found == name), b"")


def _seconds(text: bytes) -> float | None:
    try:
        return max(0.0, float(text))
    except ValueError:
        return None
