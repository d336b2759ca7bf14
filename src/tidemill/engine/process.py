"""The engine's own process: `python -m tidemill.engine.process --socket PATH`.

The configuration is one line of JSON on stdin, which stays open: when it closes, the parent has
ended, and the engine exits. Until it listens and its weights are loaded, the engine writes one JSON
`Report` per line to stdout; everything else uses the socket. Several clients may connect. The
engine exits when the connection of its owner closes, and on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from tidemill.base.build import build_id
from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.heap import use_few_arenas
from tidemill.base.log import get_logger, log_line, set_up_logging
from tidemill.base.stderr import guard_stderr
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import FinishReason, RequestError
from tidemill.contract.wire import (
    PROTOCOL_VERSION,
    CacheRequest,
    Cancel,
    CheckAdapter,
    Control,
    DropAdapter,
    EndProfile,
    Fatal,
    FrameReader,
    Hello,
    Refused,
    StartProfile,
    StatsRequest,
    Submit,
    ToEngine,
    Welcome,
    frame,
    frames,
    to_engine_decoder,
)
from tidemill.engine.core import EngineCore, Message, open_core
from tidemill.engine.flightlog import FlightLog
from tidemill.engine.recorder import Heartbeat
from tidemill.engine.reports import FOLDER_PREFIX, LoadProgress, Report

if TYPE_CHECKING:
    from tidemill.transfer.link import Link

_log = get_logger(__name__)

# A client that reads nothing for UNREAD_SECONDS while more than MAX_UNREAD_BYTES are buffered for
# it is dropped. The buffer's size alone is no criterion: several large requests may end at once.
MAX_UNREAD_BYTES = 64 * 2**20
UNREAD_SECONDS = 20.0

# An engine that fails before its owner has connected waits so long, to report the error.
OWNER_SECONDS = 10.0

REPORT_SECONDS = 0.1

EXIT_OK, EXIT_START_FAILED, EXIT_FATAL, EXIT_LOST = 0, 2, 3, 4


class EngineServer:
    """Serves an `EngineCore` to the clients of a Unix socket.

    Args:
        core: a started core.
        config_digest: the configuration digest that clients must send.
    """

    def __init__(self, core: EngineCore, config_digest: str) -> None:
        self.core = core
        self.config_digest = config_digest
        self.loop = asyncio.get_running_loop()
        self.exit_code: asyncio.Future[int] = self.loop.create_future()
        self._owned = self._over = False
        core.connect(self._watch)

    def stop(self, code: int = EXIT_OK) -> None:
        """End the process with an exit code; the first call wins."""
        if not self.exit_code.done():
            self.exit_code.set_result(code)

    def _watch(self, message: Message) -> None:
        if isinstance(message, Fatal):
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        # An owner that is about to connect must still receive the error.
        self._over = True
        self.loop.call_later(0 if self._owned else OWNER_SECONDS, self.stop, EXIT_FATAL)

    def owned(self) -> None:
        """Called when the owner has connected."""
        self._owned = True
        if self._over:
            self.loop.call_soon(self.stop, EXIT_FATAL)


class _Connection(asyncio.Protocol):
    """One client's connection.

    Args:
        server: of the engine.
        remote: the client is another server, which sends requests and nothing else.
    """

    def __init__(self, server: EngineServer, *, remote: bool = False) -> None:
        self._server = server
        self._remote = remote
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._client: int | None = None
        self._owner = False
        self._written = 0  # bytes, buffered ones included
        self._watched = False  # a check of whether the client reads is scheduled

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._reader.feed(data):
                self._receive(to_engine_decoder.decode(body))
        except (ValueError, TidemillError) as error:
            _log.error("invalid message from a client, which is dropped: %s", error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client is not None:
            self._server.core.disconnect(self._client)
        self._transport = None
        if self._owner:
            self._server.stop()

    def _receive(self, message: ToEngine) -> None:
        core, client = self._server.core, self._client
        if self._remote and not _may_remotely(message):
            raise ValueError("another server may not ask for this")
        if isinstance(message, Hello):
            self._handshake(message)
        elif client is None:
            raise ValueError("the first message must be Hello")
        elif isinstance(message, Submit):
            core.submit(client, message.request, remote=self._remote)
        elif isinstance(message, Cancel):
            core.cancel(
                client, message.request_id, message.choice, FinishReason(message.finish_reason)
            )
        elif isinstance(message, StatsRequest):
            core.request_stats(client, message.nonce)
        elif isinstance(message, CacheRequest):
            core.request_cache(client, message)
        elif isinstance(message, Control):
            core.control(client, message)
        elif isinstance(message, CheckAdapter):
            (core.find_adapter if self._remote else core.check_adapter)(client, message)
        elif isinstance(message, DropAdapter):
            core.drop_adapter(message)
        elif isinstance(message, StartProfile | EndProfile):
            core.profile(client, message)

    def _handshake(self, hello: Hello) -> None:
        server = self._server
        ours = (PROTOCOL_VERSION, build_id(), server.config_digest)
        theirs = (hello.protocol, hello.build, hello.config_digest)
        names = ("protocol", "build", "configuration")
        for name, mine, other in zip(names, ours, theirs, strict=True):
            if mine != other:
                text = f"the engine's {name} is {mine}, the client expects {other}"
                self._write(frame(Refused(text)))
                if self._transport is not None:
                    self._transport.close()
                return
        if self._client is None:
            self._client = server.core.connect(self._sink)
            self._owner = hello.owner
        self._write(frame(Welcome(*ours, server.core.info)))
        if self._owner:
            server.owned()

    def _sink(self, message: Message) -> None:
        # Runs in the engine's thread. Encoding here leaves only the write to the event loop.
        for data in frames(message):
            self._server.loop.call_soon_threadsafe(self._write, data)

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        transport.write(data)
        self._written += len(data)
        if not self._watched and transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._watched = True
            self._server.loop.call_later(UNREAD_SECONDS, self._look, self._read_bytes(transport))

    def _read_bytes(self, transport: asyncio.Transport) -> int:
        return self._written - transport.get_write_buffer_size()

    def _look(self, before: int) -> None:
        self._watched = False
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() <= MAX_UNREAD_BYTES:
            return
        if self._read_bytes(transport) <= before:
            _log.error("a client has read nothing for %g s and is dropped", UNREAD_SECONDS)
            transport.abort()
        else:
            self._write(b"")


def _may_remotely(message: ToEngine) -> bool:
    if isinstance(message, Hello):
        return not message.owner
    if isinstance(message, CheckAdapter):
        return not message.adapter.path  # a file of this machine
    return isinstance(message, Submit | Cancel | StatsRequest)


def _serve_remotely(engine: EngineServer) -> None:
    """Serve other servers as well, where the engine listens for them."""

    def take(link: Link) -> None:
        from tidemill.engine.remote import Clock  # few are asked

        try:
            link.send(Clock(monotonic(), engine.config_digest))
        except OSError:
            link.close()
            return
        found = link.detach()
        asyncio.run_coroutine_threadsafe(
            engine.loop.connect_accepted_socket(lambda: _Connection(engine, remote=True), found),
            engine.loop,
        )

    engine.core.on_requests(take)


async def serve_core(
    core: EngineCore, path: str, config_digest: str
) -> tuple[asyncio.Server, EngineServer]:
    """Listen on a Unix socket for clients of a started core."""
    engine = EngineServer(core, config_digest)
    server = await engine.loop.create_unix_server(lambda: _Connection(engine), path)
    os.chmod(path, 0o600)
    _serve_remotely(engine)
    return server, engine


async def _main(path: str, config: EngineConfig, reports: IO[bytes], log: FlightLog | None) -> int:
    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    await _watch_parent(gone)
    terminated = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, terminated.set)

    def report(message: Report) -> None:
        try:
            reports.write(msgspec.json.encode(message) + b"\n")
            reports.flush()
        except OSError:
            _log.warning("the parent process no longer reads this engine's reports")

    def progress(line: str) -> None:
        _log.info("%s", line)
        report(Report(progress=line))

    heartbeat = None if log is None else Heartbeat(log)
    loading = asyncio.ensure_future(asyncio.to_thread(open_core, config, progress, log, _end_with))
    ended = [gone, asyncio.ensure_future(terminated.wait())]
    await asyncio.wait([loading, *ended], return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        # The loading thread cannot be interrupted, and no state needs to be saved.
        os._exit(EXIT_OK)
    try:
        core = loading.result()
    except TidemillError as error:
        report(Report(error=RequestError(error.kind, error.message, error.param, error.retryable)))
        return EXIT_START_FAILED
    except Exception as error:
        _log.exception("the engine could not start")
        text = f"the engine could not start: {error!r}"
        report(Report(error=RequestError(ErrorKind.INTERNAL, text)))
        return EXIT_START_FAILED
    if heartbeat is not None:
        heartbeat.follow(core.pulse, core.wait_busy)
    server, engine = await serve_core(core, path, config.digest())
    report(Report(ready=True))
    reporting = asyncio.ensure_future(_report_loading(core, report))
    await asyncio.wait([engine.exit_code, *ended], return_when=asyncio.FIRST_COMPLETED)
    server.close()
    reporting.cancel()
    if heartbeat is not None:
        heartbeat.stop()
    await asyncio.to_thread(core.close)
    await asyncio.sleep(0)  # lets the last outputs reach the transports
    # The owner's socket may close a moment before its pipe does.
    await asyncio.wait([gone], timeout=0.1)
    await _remove_socket(Path(path), orphaned=gone.done())
    return engine.exit_code.result() if engine.exit_code.done() else EXIT_OK


def _end_with(how: str) -> None:
    """A process that computes a part of the model has ended: the engine does too, and its owner
    recovers as after a crash of its own."""
    _log.error("the engine ends, because %s", how)
    os._exit(EXIT_LOST)


async def _report_loading(core: EngineCore, report: Callable[[Report], None]) -> None:
    """Report how far weights are loaded until all are."""
    last = -1
    while True:
        loaded, total = core.loaded_bytes()
        if loaded != last:
            report(Report(weights=LoadProgress(loaded, total)))
            last = loaded
        if loaded >= total:
            return
        await asyncio.sleep(REPORT_SECONDS)


async def _remove_socket(path: Path, *, orphaned: bool) -> None:
    """Remove the socket and, if the owner (which holds the folder's lock) has died, the folder."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        if not orphaned or not path.parent.name.startswith(FOLDER_PREFIX):
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            # A killed owner's pipes may close a moment before its locks do.
            for _ in range(50):
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.parent.rmdir()
                    return
                except BlockingIOError:
                    await asyncio.sleep(0.02)
        finally:
            os.close(folder)


async def _watch_parent(gone: asyncio.Future[None]) -> None:
    """Complete `gone` when stdin closes."""

    class OwnerWatch(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            if not gone.done():
                gone.set_result(None)

    await asyncio.get_running_loop().connect_read_pipe(OwnerWatch, sys.stdin.buffer)


def main() -> int:
    """Run an engine process; see the module docstring."""
    parser = argparse.ArgumentParser(prog="tidemill.engine.process", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the Unix socket to listen on")
    parser.add_argument("--log-level", default="info", help="debug, info, warning or error")
    parser.add_argument("--log-format", default="text", help="text or json")
    parser.add_argument("--flight-log", help="DESCRIPTOR:ROWS of the supervisor's flight log")
    options = parser.parse_args()
    # Ctrl-C reaches the terminal's whole process group; the owner decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    use_few_arenas()
    guard_stderr(log_line)
    set_up_logging("engine", options.log_level, options.log_format)
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of libraries must not mix with the reports
    line = _read_line(0)
    if not line:
        return EXIT_OK  # the owner ended before it sent the configuration
    try:
        config = msgspec.json.decode(line, type=EngineConfig)
    except msgspec.DecodeError as error:
        text = f"the configuration is invalid: {error}"
        reports.write(
            msgspec.json.encode(Report(error=RequestError(ErrorKind.CONFIG, text))) + b"\n"
        )
        reports.flush()
        return EXIT_START_FAILED
    log = None
    if options.flight_log is not None:
        descriptor, capacity = map(int, options.flight_log.split(":"))
        log = FlightLog(descriptor, capacity)
    return asyncio.run(_main(options.socket, config, reports, log))


def _read_line(descriptor: int) -> bytes:
    """Read a line byte by byte, so that nothing after it is consumed."""
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
