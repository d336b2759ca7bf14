"""uvicorn with bounds on connections and requests, and without its own signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
from email.utils import formatdate
from functools import partial
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tidemill.base.clock import monotonic, wall
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.metrics.registry import ServerMetrics
from tidemill.server.access.auth import PROBES
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security
from tidemill.server.errors import ErrorBody, Problem, reject
from tidemill.server.transport.connections import Connections
from tidemill.server.transport.readers import SlowReaders
from tidemill.server.transport.sink import Headers
from tidemill.server.transport.websocket import WebSocket

log = get_logger(__name__)

BODY_GRACE_SECONDS = 5.0
"""Grace period of a body beyond its timeout (the application answers first). Also the time that the
rest of a body may take after its request is answered, before the connection is closed."""

PROBE_SECONDS = 2.0
"""Time in which a connection beyond the bound must request a probe."""

HAND_OVER_SECONDS = 1.0
"""In which connections that were accepted just before may begin their request."""

LIVENESS_INTERVALS = (0.05, 1.0, 2.0, 4.0, 8.0)
"""Intervals between liveness checks of a half-closed connection; see `eof_received`."""

MANY_CHUNKS, SMALL_CHUNK = 4096, 64
"""A body of more than MANY_CHUNKS chunks must have SMALL_CHUNK bytes per chunk on average."""

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
    error_body: ErrorBody
    handing_over = False  # every answer is its connection's last one


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with bounds in size and time.

    Invalid HTTP and requests beyond a bound of `Limits` get an error response of the API and close
    the connection. The parser rejects ambiguous lengths, folded headers and bare line feeds;
    `on_headers_complete` rejects what the parser accepts.
    """

    config: _Config

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = self.config.limits
        self._head_bytes: int | None = 0  # None while a body or an answer is in flight
        self._arriving = False  # a request's bytes are arriving
        self._timer: asyncio.TimerHandle | None = None  # of a head or a body
        self._reading_stopped = False  # nothing more is read from this connection
        self._replaying = False
        self._rejection: Problem | None = None
        self._probes_only = False  # admitted beyond the bound
        self._chunks = self._chunk_bytes = 0  # of the current body
        self._long_body = False  # the current one may take any time: its handler has a clock
        self._half_closed = False  # the client has shut down its side
        self._socket: WebSocket | None = None  # what the connection has become
        self._liveness_timer: asyncio.TimerHandle | None = None

    # -- connections ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head, or admit the connection for probes only."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self._limits.max_unread_bytes)
        if self.config.connections.enter(self, self.client[0] if self.client else ""):
            self._start_timer(self._limits.head_timeout)
        else:
            self._probes_only = True
            self._start_timer(PROBE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_timer()
        if self._liveness_timer is not None:
            self._liveness_timer.cancel()
        if self._socket is not None:
            self._socket.disconnected()
        self.config.connections.leave(self)
        self.config.readers.forget(self.transport)
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """True when a complete request has not been answered yet."""
        if self._socket is not None:
            return self._socket.answering
        return self._answering() and not self.cycle.more_body

    def shutdown(self) -> None:
        """The server stops: what is being answered is answered."""
        if self._socket is not None:
            self._socket.shut_down()
        super().shutdown()

    def hand_over(self) -> None:
        """Close this connection unless something is being answered, and then after that answer."""
        if self._socket is None:
            super().shutdown()

    def close_idle(self) -> None:
        """Close this idle connection in favour of another one."""
        self._reading_stopped = True
        self.transport.close()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client has shut down its side of the connection: its request is still answered.

        A client that has closed the connection looks the same until something is sent to it.
        Interim responses detect that, so that nothing is computed for a client that has left.
        HTTP/1.0 has no interim responses; there the client is assumed to have left.
        """
        if not self.busy or self.scheme == "https" or self.scope["http_version"] != "1.1":
            return None
        if self._socket is not None:
            return None  # both sides of a WebSocket close together
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
            self._schedule_liveness_check(turn)  # an earlier answer is being written
        elif not self.cycle.response_started:
            self.transport.write(_INTERIM)
            self._schedule_liveness_check(turn)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes within the bounds."""
        if self._reading_stopped:
            return
        if self._socket is not None:
            self._socket.feed(data)
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
        # Checked after parsing: the bytes that completed a head may include a body.
        if self._head_bytes is not None and self._head_bytes > self._limits.max_head_bytes:
            self._reject(self._too_large("head", self._limits.max_head_bytes, "bytes"))
        elif (
            self._arriving
            and self._head_bytes is None
            and self._timer is None
            and not self._long_body
        ):
            self._start_timer(self._limits.body_timeout + BODY_GRACE_SECONDS)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser expects another protocol after an Upgrade header. The offer is ignored:
            # HTTP/1.1 continues with the declared body (Java's client offers h2c every time).
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
        """A head that declares the same body as the latest request; empty if it has none."""
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
        """A header, or a trailer after a chunked body. Trailers are rejected."""
        if self._replaying:
            return
        if self._head_bytes is None:
            # The request was authenticated with the headers of its head.
            self._stop_parsing(
                reject(
                    400, "trailers after a chunked body are unsupported", code="bad_http"
                ).problem
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
        self._long_body = False
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
        # Before the application is called, in a task of its own.
        extensions: dict[str, Any] = {
            "tidemill.long_body": self._allow_long_body,
            "tidemill.arrived": monotonic(),
        }
        if self._get_upgrade() == b"websocket":
            extensions["tidemill.websocket"] = partial(self._become_websocket, self.scope)
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        if self._probes_only or self.config.handing_over:
            self.cycle.keep_alive = False
        if self.scope["http_version"] == "1.0":
            _write_until_closed(self.cycle)
        else:
            extensions["tidemill.write"] = partial(_write_part, self.cycle)
        self.config.readers.watch(self.transport, self._answering)

    def on_body(self, body: bytes) -> None:
        """A part of a body, or a chunk of it."""
        self._chunks += 1
        self._chunk_bytes += len(body)
        small = self._chunk_bytes < SMALL_CHUNK * self._chunks
        # One read can contain tens of thousands of chunks, and each costs a call.
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

    def _become_websocket(self, scope: Any, headers: Headers) -> tuple[WebSocket, ASGIApp]:
        """Answer the current request with 101; the connection is a WebSocket from now on.

        Args:
            scope: of the request.
            headers: of the answer.

        Returns:
            The WebSocket, and the whole application.

        Raises:
            Rejection: other requests follow on this connection, or it is closing.
        """
        cycle = self.cycle
        if scope is not self.scope or self.pipeline or self.transport.is_closing():
            raise reject(400, "no request may follow a WebSocket's handshake", code="bad_http")
        cycle.response_started = True
        self._stop_timer()

        def end() -> None:
            cycle.response_complete = True
            self.transport.close()

        limits = self._limits
        self._socket = WebSocket(
            self.transport, self.flow, limits.max_body_bytes, limits.max_unread_bytes, end
        )
        lines = [b"%b: %b\r\n" % item for item in (*self.server_state.default_headers, *headers)]
        self.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n" + b"".join(lines) + b"\r\n")
        self.config.metrics.on_response(101)
        return self._socket, self.app

    def _allow_long_body(self) -> None:
        """The handler of the current request bounds the time between two parts of its body."""
        self._long_body = True
        self._stop_timer()

    def on_response_complete(self) -> None:
        """The answer is written; the rest of the request's body may arrive for a short time."""
        super().on_response_complete()
        if self._half_closed and not self._answering():
            self.transport.close()
        elif self._arriving and self._head_bytes is None:
            self._start_timer(BODY_GRACE_SECONDS)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _date(self) -> None:
        """Set the `Date` header of responses from now on."""
        date = formatdate(int(wall()), usegmt=True).encode()
        self.server_state.default_headers = [(b"date", date)]

    # -- refusals ------------------------------------------------------------------------------

    def _stop_parsing(self, problem: Problem) -> None:
        self._rejection = problem
        raise ValueError("refused")  # the parser wraps it in its own error

    def _too_large(self, what: str, bound: int, unit: str) -> Problem:
        return reject(431, f"the request's {what} has more than {bound} {unit}").problem

    def _full(self) -> Problem:
        message = f"all {self._limits.max_connections} connections are taken; try again later"
        code, headers = "too_many_connections", {"Retry-After": "1"}
        return reject(503, message, code=code, headers=headers).problem

    def _reject(self, problem: Problem) -> None:
        """Send an error response, unless an earlier request is still being answered."""
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
        request_id, body = new_id("req"), self.config.error_body(problem)
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
            # A body that did not arrive, or a connection without a request.
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


def _write_part(cycle: RequestResponseCycle, data: bytes) -> bool:
    """Write a part of an answer that has begun and has no announced length, without the
    application's `send`: a tenth of its work, for whoever passes on many small parts.

    Returns:
        More may be written; else `send` has to be awaited, which waits for the reader.
    """
    if cycle.disconnected:
        return True  # as `send` does: the application learns it from `receive`
    if not cycle.chunked_encoding or not cycle.response_started or cycle.response_complete:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return not cycle.flow.write_paused


def _is_chunked(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"transfer-encoding" for name, _ in headers)


def _ambiguous(headers: list[tuple[bytes, bytes]], version: str, url: bytes) -> str | None:
    """Why another server could interpret this head differently, or None."""
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
    """uvicorn without signal handlers (`server.run` also has to stop the engine) and without its
    polling ten times a second: it sleeps until a request arrives or `stop` is called.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Install no handlers."""
        return contextlib.nullcontext()

    async def main_loop(self) -> None:
        """Wait for `stop`."""
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._stopping.wait()

    async def hand_over(self) -> None:
        """Accept no further connections: they wait in the socket for the process that has it next.

        Connections that were accepted may begin a request for `HAND_OVER_SECONDS`; then the idle
        ones are closed. Whatever is being answered goes on.
        """
        config = self.config
        assert isinstance(config, _Config)
        config.handing_over = True
        for server in self.servers:
            server.close()
        await asyncio.sleep(HAND_OVER_SECONDS)
        for connection in list(self.server_state.connections):
            assert isinstance(connection, BoundedProtocol)
            connection.hand_over()

    def stop(self) -> None:
        """Stop listening and let answers in flight finish; callable from any thread."""
        self.should_exit = True
        # Either `main_loop` sees `should_exit`, or `_loop` is set here.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)


def make_server(
    app: ASGIApp,
    limits: Limits,
    metrics: ServerMetrics,
    error_body: ErrorBody,
    *,
    drain_seconds: int,
    security: Security | None = None,
) -> HttpServer:
    """A server for `app`.

    Args:
        app: the application.
        limits: bounds of connections and requests.
        metrics: counts responses and slow readers.
        error_body: the shape of errors of what is no request.
        drain_seconds: time of requests in flight after `stop`.
        security: certificates and trusted proxies.
    """
    security = security or Security()
    certificates = security.certificates
    config = _Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,  # `BoundedProtocol` writes it
        # Other clients could otherwise forge their address.
        proxy_headers=bool(security.trusted_proxies),
        forwarded_allow_ips=list(security.trusted_proxies),
        timeout_keep_alive=limits.keep_alive_timeout,  # type: ignore[arg-type]
        timeout_graceful_shutdown=drain_seconds,
        ssl_context_factory=(
            None if certificates is None else lambda config, default: certificates.context
        ),
    )
    config.limits, config.metrics, config.error_body = limits, metrics, error_body
    config.connections = Connections(limits.max_connections)
    config.readers = SlowReaders(limits.slow_reader_timeout, metrics.slow_readers.inc)
    return HttpServer(config)
