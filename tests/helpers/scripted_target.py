"""A server for a gateway to talk to: real sockets, scripted answers, and what it received."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Send = Callable[[bytes], Awaitable[None]]


@dataclass
class Got:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, without a position before it."""
        return json.loads(self.body[int(self.headers.get("x-tidemill-position", "0")) :])

    @property
    def position(self) -> Any:
        """From where an answer is gone on with; None: from its begin."""
        size = int(self.headers.get("x-tidemill-position", "0"))
        return json.loads(self.body[:size]) if size else None


class Abort(Exception):
    """Raised by a script: the connection is cut."""


Script = Callable[[Got, Send], Awaitable[None]]


@dataclass
class ScriptedTarget:
    """Answers every POST with `script`; GETs with 200, or 503 while `well` is false.

    Attributes:
        got: requests with a body, in their order.
        pause: seconds before a GET is answered.
        bytes_in: all that arrived, heads and bodies.
    """

    script: Script
    models: list[str] = field(default_factory=lambda: ["m"])
    well: bool = True
    load: dict[str, Any] | None = None
    date: str = ""
    pause: float = 0.0
    got: list[Got] = field(default_factory=list)
    bytes_in: bytearray = field(default_factory=bytearray)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                got = await self._read(reader)
                if got is None:
                    return
                if got.method == "GET":
                    await self._answer_get(got, writer)
                else:
                    self.got.append(got)
                    await self.script(got, _sender(writer))
        except (Abort, ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            with contextlib.suppress(Exception):
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Got | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        self.bytes_in += head
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.bytes_in += body
        method, path, _ = first.split(" ")
        return Got(method, path, headers, body)

    async def _answer_get(self, got: Got, writer: asyncio.StreamWriter) -> None:
        document: Any = {"data": [{"id": name} for name in self.models]}
        status = 200 if self.well else 503
        await asyncio.sleep(self.pause)
        if got.path == "/load":
            document, status = (self.load or {}), (200 if self.load else 404)
        if got.path.startswith("/admin/"):
            status = 404  # as an older server
        dated = {"date": self.date} if self.date else {}
        await whole(_sender(writer), document, status, **dated)


def _sender(writer: asyncio.StreamWriter) -> Send:
    async def send(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return send


async def whole(send: Send, document: Any, status: int = 200, **headers: Any) -> None:
    """Answer with a JSON document."""
    body = json.dumps(document).encode()
    more = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}"
    await send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


async def begin(send: Send, kind: str = "text/event-stream") -> None:
    """Begin a stream."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    await send(head.encode())


async def chunk(send: Send, data: bytes) -> None:
    """A part of a stream; empty: its end."""
    await send(b"%x\r\n%b\r\n" % (len(data), data))


async def event(send: Send, value: Any) -> None:
    """An event of a stream."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    await chunk(send, f"data: {text}\n\n".encode())


def delta(text: str, identity: str = "c1", finish: str | None = None) -> dict[str, Any]:
    """A chunk of a chat completion."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return {"id": identity, "created": 1, "model": "m", "choices": [choice]}


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def chat(*words: str, name: str = "c1") -> Script:
    """Answers chat completions with these words, whole or streamed."""

    async def script(got: Got, send: Send) -> None:
        if not got.json.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await whole(send, {"id": name, "model": "m", "choices": [choice], "usage": USAGE})
            return
        await begin(send)
        for word in words:
            await event(send, delta(word, name))
        await event(send, delta("", name, "stop"))
        await event(send, {"id": name, "choices": [], "usage": USAGE})
        await event(send, "[DONE]")
        await chunk(send, b"")

    return script


def refuses(status: int, **headers: Any) -> Script:
    """Answers with an error."""

    async def script(got: Got, send: Send) -> None:
        await whole(send, {"error": {"message": "no"}}, status, **headers)

    return script


def dies(*words: str, name: str = "c1", well: bool = False) -> Script:
    """Cuts the connection after these words of a stream; at once where there are none. `well`: as
    HTTP has it, the answer is over then."""

    async def script(got: Got, send: Send) -> None:
        if words:
            await begin(send)
        for word in words:
            await event(send, delta(word, name))
            await asyncio.sleep(0.01)
        if not well:
            raise Abort
        await chunk(send, b"")

    return script


def engine(
    *words: str, key: str, dies_after: int = 99, well: bool = False, moves: bool = False
) -> Script:
    """A Tidemill server's stream of chat completions, with marks; it goes on from a position.

    Args:
        words: of the answer: a token each.
        key: of an answer that it begins; it is its id, too.
        dies_after: words after which it ends without the rest.
        well: as HTTP has it, the answer is over then.
        moves: its last mark says that another one goes on.
    """

    async def script(got: Got, send: Send) -> None:
        begun = {"key": key, "created": 1.0}
        at = 0
        if got.position is not None:
            begun, at = got.position["begun"], len(got.position["told"])
        await begin(send)
        for i, word in enumerate(words[at:dies_after], at):
            mark: dict[str, Any] = {"told": [[0, 0, [i]]]}
            if i == at == 0:
                mark["begun"] = begun
            if moves and i == dies_after - 1:
                mark["moved"] = True
            text = json.dumps(delta(word, begun["key"]), separators=(",", ":"))
            marked = json.dumps(mark, separators=(",", ":"))
            await chunk(send, f"data: {text}\n\n: tidemill {marked}\n\n".encode())
            await asyncio.sleep(0.01)
        if len(words) > dies_after:
            await event(send, delta("LOST", begun["key"]))  # without a mark: it was not said
            if not (well or moves):
                raise Abort
        else:
            await event(send, delta("", begun["key"], "stop"))
            await event(send, {"id": begun["key"], "choices": [], "usage": USAGE})
            await event(send, "[DONE]")
        await chunk(send, b"")

    return script


@contextlib.contextmanager
def running(*targets: ScriptedTarget) -> Iterator[None]:
    """Targets that listen on ports of their own, in one thread; each then has its `url`."""
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def listen() -> None:
        for target in targets:
            server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
            target.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.create_task(listen())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        loop.call_soon_threadsafe(loop.call_later, 0.05, loop.stop)
        thread.join(10)
