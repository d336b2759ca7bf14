"""An event loop whose time is simulated, and a scripted server in it: exact on a busy machine.

Time stands still while anything can run, and jumps to the next timer when nothing can.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Body of a request, its number and the loop's time -> seconds until each chunk, from its arrival.
Script = Callable[[dict[str, Any], int, float], list[float]]


class _NoSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Reports nothing but what is ready, and lets the loop's clock pass instead of waiting."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("simulated time: nothing will ever happen")
        if not found and timeout:
            self._loop.now += timeout
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_NoSelector(self))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)


class _Pipe(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.peer: _Pipe
        self.closed = False

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().call_soon(self.peer.protocol.data_received, bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = self.peer.closed = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self.peer.protocol.connection_lost, None)
            loop.call_soon(self.protocol.connection_lost, None)

    abort = close


class ScriptedServer:
    """Streams completions whose chunks come at scripted times, over connections in memory.

    Attributes:
        bodies: of all requests, with the time at which each arrived.
        connections: that were opened.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.bodies: list[tuple[float, dict[str, Any]]] = []
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(
        self, target: object, factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Protocol:
        """For `Client(connect=...)`."""
        self.connections += 1
        reader = asyncio.StreamReader()
        ours, theirs = _Pipe(asyncio.StreamReaderProtocol(reader)), _Pipe(factory())
        ours.peer, theirs.peer = theirs, ours
        for end in (ours, theirs):
            end.protocol.connection_made(end)
        task = asyncio.create_task(self._serve(reader, ours))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return theirs.protocol

    async def _serve(self, reader: asyncio.StreamReader, pipe: _Pipe) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length) or b"{}")
            if head.startswith(b"GET"):
                data = b'{"data": [{"id": "scripted"}]}'
                pipe.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            else:
                await self._stream(body, pipe)

    async def _stream(self, body: dict[str, Any], pipe: _Pipe) -> None:
        loop = asyncio.get_running_loop()
        came = loop.time()
        self.bodies.append((came, body))
        pipe.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        times = self._script(body, len(self.bodies) - 1, came)
        for number, seconds in enumerate(times):
            await asyncio.sleep(came + seconds - loop.time())
            last = number == len(times) - 1
            choice = {"text": f"w{number} ", "finish_reason": "length" if last else None}
            _write_event(pipe, {"choices": [choice]})
        usage = {"prompt_tokens": 7, "completion_tokens": len(times)}
        _write_event(pipe, {"choices": [], "usage": usage})
        data = b"data: [DONE]\n\n"
        pipe.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))


def _write_event(pipe: _Pipe, event: dict[str, Any]) -> None:
    data = f"data: {json.dumps(event)}\n\n".encode()
    pipe.write(b"%x\r\n%s\r\n" % (len(data), data))


def one_at_a_time(seconds: float) -> Script:
    """A server that computes one request at a time, each for so many seconds, in their order."""
    free = 0.0

    def script(body: dict[str, Any], number: int, now: float) -> list[float]:
        nonlocal free
        free = max(free, now) + seconds
        return [free - now]

    return script


def run_simulated(server: ScriptedServer, call: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Await `call(*args, clock=..., connect=..., poll=0)` in simulated time."""

    async def main() -> T:
        clock = asyncio.get_running_loop().time
        return await call(*args, clock=clock, connect=server.connect, poll=0.0)

    return simulate(main())
