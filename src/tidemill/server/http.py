"""uvicorn around the application: connections within bounds, and signals left to their owner."""

from __future__ import annotations

import asyncio
import contextlib
from email.utils import formatdate
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tidemill.base.clock import wall
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.metrics.registry import ServerMetrics
from tidemill.server.app import build_app
from tidemill.server.auth import PROBES
from tidemill.server.connections import Connections
from tidemill.server.context import ServerContext
from tidemill.server.errors import Problem, reject
from tidemill.server.limits import Limits
from tidemill.server.readers import SlowReaders
from tidemill.server.security import Security

log = get_logger(__name__)

BODY_GRACE_SECONDS = 5.0
"""So long a body may take beyond its time (the application answers first), or, when its request is
answered already, may go on arriving before the connection is closed."""

PROBE_SECONDS = 2.0
"""So long a connection beyond the bound is waited for to ask for a probe."""

LIVENESS_INTERVALS = (0.05, 1.0, 2.0, 4.0, 8.0)
"""Between the questions to a client that sends no more, whether it is there; see `eof_received`."""

MANY_CHUNKS, SMALL_CHUNK = 4096, 64
"""A body of more chunks than this must have so many bytes in each on average."""

_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"

_PROXY = "this is the PROXY protocol, which the server does not take: turn it off in the proxy"
_OTHER_PROTOCOLS = {
    b"\x16\x03": "this is TLS, and the server speaks plain HTTP on this port: use http://",
    b"PRI * HTTP/2": "this is HTTP/2, and the server speaks HTTP/1.1: let the client use that",
    b"SSH-": "this is SSH, and the server speaks HTTP on this port",
    b"PROXY ": _PROXY,
    b"\r\n\r\n\0\r\nQUIT\n": _PROXY,
}
"""How connections of other protocols begin, and what their clients should do."""


class _Config(uvicorn.Config):
    limits: Limits
    metrics: ServerMetrics
    readers: SlowReaders
    connections: Connections


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with bounds in size and time.

    What is no valid HTTP, and what exceeds a bound of `Limits`, is answered in the API's own shape
    and closes the connection. The parser beneath refuses ambiguous lengths, folded headers and bare
    line feeds; `on_headers_complete` what it lets through.
    """

    config: _Config

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = self.config.limits
        self._head_bytes: int | None = 0  # None while a body or an answer is under way
        self._arriving = False  # between the start and the end of a request's bytes
        self._timer: asyncio.TimerHandle | None = None  # of a head or a body
        self._reading_stopped = False  # nothing more is read from this connection
        self._replaying = False
        self._rejection: Problem | None = None
        self._probes_only = False  # it came when all connections were taken
        self._chunks = self._chunk_bytes = 0  # of the body under way
        self._half_closed = False  # the client sends nothing more
        self._liveness_timer: asyncio.TimerHandle | None = None

    # -- connections ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first head, or turn the connection away."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self._limits.max_unread_bytes)
        if self.config.connections.enter(self, self.client[0] if self.client else ""):
            self._start_timer(self._limits.head_timeout)
        else:
            self._probes_only = True
            self._start_timer(PROBE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_timer()
        if self._liveness_timer is not None:
            self._liveness_timer.cancel()
        self.config.connections.leave(self)
        self.config.readers.forget(self.transport)
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """A request of this connection is complete and not answered."""
        return self._answering() and not self.cycle.more_body

    def close_idle(self) -> None:
        """Close it for the sake of others."""
        self._reading_stopped = True
        self.transport.close()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends nothing more: what it has asked for is answered all the same.

        It may be gone altogether, which looks the same until something is sent to it: interim
        responses find out, so that nobody computes for a client that has left. One of HTTP/1.0 must
        not be sent any, and is taken to have left.
        """
        if not self.busy or self.scheme == "https" or self.scope["http_version"] != "1.1":
            return None
        self._half_closed = True
        self._schedule_liveness_check(0)
        return True

    def _schedule_liveness_check(self, turn: int) -> None:
        seconds = LIVENESS_INTERVALS[min(turn, len(LIVENESS_INTERVALS) - 1)]
        self._liveness_timer = self.loop.call_later(seconds, self._check_liveness, turn + 1)

    def _check_liveness(self, turn: int) -> None:
        self._liveness_timer = None
        if self.transport.is_closing() or not self.busy:
            return
        if self.pipeline:
            self._schedule_liveness_check(turn)  # another's answer is being written
        elif not self.cycle.response_started:
            self.transport.write(_INTERIM)
            self._schedule_liveness_check(turn)

    def data_received(self, data: bytes) -> None:
        """Parse what came, within the bounds."""
        if self._reading_stopped:
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            problem = self._rejection
            if problem is None:
                problem = _invalid(data, error)
            self._reject(problem)
            return
        # Looked at afterwards: what completed a head may have had a body behind it.
        if self._head_bytes is not None and self._head_bytes > self._limits.max_head_bytes:
            self._reject(self._too_large("head", self._limits.max_head_bytes, "bytes"))
        elif self._arriving and self._head_bytes is None and self._timer is None:
            self._start_timer(self._limits.body_timeout + BODY_GRACE_SECONDS)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser thinks that another protocol follows. None does: HTTP/1.1 goes on, with
            # the body that the head announced (Java's client offers h2c with every request).
            rest = data[upgrade.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            if length := self._body_head():
                self._arriving, self.cycle.more_body = True, True
                self._replaying = True
                self.parser.feed_data(length)
                self._replaying = False
            if rest:
                self._feed(rest)

    def _body_head(self) -> bytes:
        """A head with the same body as the latest request, or nothing if it has none."""
        for name, value in self.headers:
            if name in (b"content-length", b"transfer-encoding") and value != b"0":
                return b"POST / HTTP/1.1\r\n%b: %b\r\n\r\n" % (name, value)
        return b""

    # -- the parser's calls --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._replaying:
            return
        self._unset_keepalive_if_required()
        self._arriving = True
        if self._head_bytes is None:
            self._head_bytes = 0
            self._start_timer(self._limits.head_timeout)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        if self._replaying:
            return
        super().on_url(url)
        if len(self.url) > self._limits.max_url_bytes:
            message = f"the URL has more than {self._limits.max_url_bytes} bytes"
            self._stop_parsing(reject(414, message).problem)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or behind a chunked body a trailer, which nobody here reads."""
        if self._replaying:
            return
        if self._head_bytes is None:
            # Not into the request: it has passed the door with the headers it had.
            self._stop_parsing(
                reject(400, "trailers behind a chunked body are not taken", code="bad_http").problem
            )
        super().on_header(name, value)
        if len(self.headers) > self._limits.max_headers:
            self._stop_parsing(self._too_large("head", self._limits.max_headers, "headers"))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._replaying:
            return
        self._head_bytes = None
        self._chunks = self._chunk_bytes = 0
        self._stop_timer()
        reason = _ambiguous(self.headers, self.parser.get_http_version(), self.url)
        if reason is not None:
            self._stop_parsing(reject(400, reason, code="bad_http").problem)
        if len(self.pipeline) >= self._limits.max_pipelined:
            message = f"more than {self._limits.max_pipelined} requests wait on this connection"
            self._stop_parsing(reject(400, message, code="too_many_pipelined").problem)
        self._date()
        if self._probes_only and self.url.partition(b"?")[0].decode("latin-1") not in PROBES:
            self._stop_parsing(self._full())
        super().on_headers_complete()
        if self._probes_only:
            self.cycle.keep_alive = False
        if self.scope["http_version"] == "1.0":
            _write_until_closed(self.cycle)
        self.config.readers.watch(self.transport, self._answering)

    def on_body(self, body: bytes) -> None:
        """A part of a body, or a chunk of it."""
        self._chunks += 1
        self._chunk_bytes += len(body)
        small = self._chunk_bytes < SMALL_CHUNK * self._chunks
        # A read can bring tens of thousands of them, each of which costs a call.
        if small and self._chunks > MANY_CHUNKS and _is_chunked(self.headers):
            message = f"the body comes in chunks of less than {SMALL_CHUNK} bytes on average"
            self._stop_parsing(reject(400, message + "; send larger ones").problem)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has arrived as a whole."""
        if self._replaying:
            return
        self._arriving = False
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written; what is left of the request's body has a little time."""
        super().on_response_complete()
        if self._half_closed and not self._answering():
            self.transport.close()
        elif self._arriving and self._head_bytes is None:
            self._start_timer(BODY_GRACE_SECONDS)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _date(self) -> None:
        """The `Date` of what is answered now."""
        date = formatdate(int(wall()), usegmt=True).encode()
        self.server_state.default_headers = [(b"date", date)]

    # -- refusals ------------------------------------------------------------------------------

    def _stop_parsing(self, problem: Problem) -> None:
        self._rejection = problem
        raise ValueError("refused")  # the parser hands it on as an error of its own

    def _too_large(self, what: str, bound: int, unit: str) -> Problem:
        return reject(431, f"the request's {what} has more than {bound} {unit}").problem

    def _full(self) -> Problem:
        message = f"all {self._limits.max_connections} connections are taken; try again later"
        code, headers = "too_many_connections", {"Retry-After": "1"}
        return reject(503, message, code=code, headers=headers).problem

    def _reject(self, problem: Problem) -> None:
        """Answer what was no request, unless an earlier one is still being answered."""
        cycle = self.cycle
        if self._answering() and (cycle.response_started or not cycle.more_body):
            self._reading_stopped = True
            cycle.keep_alive = False
            self._stop_timer()
            return
        self._answer(problem)

    def _answer(self, problem: Problem) -> None:
        self._reading_stopped = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        self._date()
        request_id, body = new_id("req"), problem.body()
        head = b"".join(b"%b: %b\r\n" % item for item in self.server_state.default_headers)
        headers = "".join(f"{k.lower()}: {v}\r\n" for k, v in problem.headers.items())
        rest = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\n{headers}connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[problem.status] + head + rest.encode() + body)
        self.transport.close()
        self.config.metrics.on_response(problem.status)
        client = self.client[0] if self.client else "?"
        why = problem.message if problem.message in _OTHER_PROTOCOLS.values() else problem.code
        log.info("%s: %d before a request: %s (%s)", client, problem.status, why, request_id)

    # -- clocks --------------------------------------------------------------------------------

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self._probes_only and self._head_bytes is not None:
            self._reject(self._full())
        elif self._head_bytes:
            seconds = self._limits.head_timeout
            self._reject(reject(408, f"the head did not arrive within {seconds:g} s").problem)
        elif self._arriving or self.cycle is None or self.cycle.response_complete:
            # A body that did not come, or a connection that never said a word.
            self._reading_stopped = True
            self.transport.close()


def _invalid(data: bytes, error: httptools.HttpParserError) -> Problem:
    """What to say of bytes that are no HTTP/1; a known other protocol is named."""
    reason = str(error.args[0]) if error.args else "it cannot be parsed"
    message = f"this is no valid HTTP: {reason}"
    for beginning, meant in _OTHER_PROTOCOLS.items():
        if data.startswith(beginning):
            message = meant
    return reject(400, message, code="bad_http").problem


def _write_until_closed(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: an answer of a length not announced ends with the connection."""
    send = cycle.send
    unknown = False

    async def send_unchunked(message: Any) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if unknown:
                cycle.chunked_encoding = False
        elif unknown:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_unchunked  # type: ignore[method-assign]


def _is_chunked(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"transfer-encoding" for name, _ in headers)


def _ambiguous(headers: list[tuple[bytes, bytes]], version: str, url: bytes) -> str | None:
    """Why another server could understand this head in another way, or None."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (version == "1.1" or hosts):
        return f"there must be one Host header, got {len(hosts)}"
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return "Transfer-Encoding can only be chunked, and only in HTTP/1.1"
    if url.startswith(b"/") or url == b"*":
        return None
    scheme, separator, rest = url.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return "the request's target must be a path"
    authority = rest.partition(b"/")[0].partition(b"?")[0]
    if not hosts or authority.lower() != hosts[0].lower():
        return "the host of the URL and the Host header differ"
    return None


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling (`server.run` has an engine to end as well), and
    without its ten ticks a second: it sleeps until there is something to answer, or `stop`.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Nothing."""
        return contextlib.nullcontext()

    async def main_loop(self) -> None:
        """Wait for `stop`."""
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._stopping.wait()

    def stop(self) -> None:
        """Listen no longer, and let the answers under way be written; from any thread."""
        self.should_exit = True
        # Either `main_loop` sees the line above, or this its loop.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)


def make_server(
    context: ServerContext, *, drain_seconds: int, security: Security | None = None
) -> HttpServer:
    """A server for `context`; requests in flight have `drain_seconds` after `stop`."""
    security = security or Security()
    certificates = security.certificates
    config = _Config(
        build_app(context, security),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,  # `BoundedProtocol` writes it
        # Whoever is not trusted could otherwise write itself any address.
        proxy_headers=bool(security.trusted_proxies),
        forwarded_allow_ips=list(security.trusted_proxies),
        timeout_keep_alive=context.limits.keep_alive_timeout,  # type: ignore[arg-type]
        timeout_graceful_shutdown=drain_seconds,
        ssl_context_factory=(
            None if certificates is None else lambda config, default: certificates.context
        ),
    )
    config.limits, config.metrics = context.limits, context.metrics
    config.connections = Connections(context.limits.max_connections)
    config.readers = SlowReaders(
        context.limits.slow_reader_timeout, context.metrics.slow_readers.inc
    )
    return HttpServer(config)
