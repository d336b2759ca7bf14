"""What a gateway adds to the time to the first token, and what a streamed token costs it; run by
`make gateway-cost`.

A target in a process of its own answers with a script, so that nothing but the way through the
gateway differs. Requests to the target and through the gateway take turns. Another proxy before the
same target, which `--other` names, is measured the same way: `make gateway-cost
ARGS="--other http://127.0.0.1:4000 --other-pid 123 --target-port 18101"`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from helpers.addresses import free_port

TOKENS, INTERVAL = 160, 0.1
"""Of a stream of many; seconds between its tokens."""
WARM = 20
_BODY = json.dumps(
    {
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "You are helpful. " * 20},
            {"role": "user", "content": "hello there"},
        ],
    }
).encode()
_DELTA = json.dumps(
    {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
    }
).encode()
_EVENT = b"data: " + _DELTA + b"\n\n"
_EVENT_NAME = b'data: {"id"'


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection: `max_tokens` says how much is streamed."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
        body = await reader.readexactly(int(fields.get(b"content-length", 0)))
        if head.startswith(b"GET"):
            content = json.dumps({"object": "list", "data": [{"id": "m"}]}).encode()
            writer.write(_head(b"application/json", b"content-length: %d" % len(content)) + content)
            await writer.drain()
            continue
        many = json.loads(body).get("max_tokens") == TOKENS
        writer.write(_head(b"text/event-stream", b"transfer-encoding: chunked"))
        for _ in range(TOKENS if many else 1):
            writer.write(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
            await writer.drain()
            if many:
                await asyncio.sleep(INTERVAL)
        end = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()


def _head(kind: bytes, more: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (kind, more)


async def _quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await _answer(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _target(port: int) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(_quietly, "127.0.0.1", port, backlog=4096)
        await server.serve_forever()

    asyncio.run(serve())


class Client:
    """A connection that sends one request after the other."""

    def __init__(self, url: str, tokens: int) -> None:
        parts = urlsplit(url)
        self._at = (parts.hostname or "", parts.port or 80)
        body = json.dumps({**json.loads(_BODY), "max_tokens": tokens}).encode()
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-1\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )

    async def open(self) -> Client:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._at)
        return self

    async def send(self) -> tuple[float, int]:
        """Seconds to the first event of an answer, and how many tokens it had."""
        begun = time.perf_counter()
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n", 1)[0], head
        text = await self._reader.read(2**16)
        first = time.perf_counter() - begun
        count = text.count(_EVENT_NAME)
        while not text.endswith(b"0\r\n\r\n"):
            more = await self._reader.read(2**16)
            assert more, "the connection was closed in the middle of a stream"
            count += more.count(_EVENT_NAME)
            text = text[-8:] + more
        return first, count

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def first_tokens(urls: list[str], requests: int) -> list[list[float]]:
    """Seconds to the first token of so many requests to each of these, which take turns."""
    clients = [await Client(url, 1).open() for url in urls]
    found: list[list[float]] = [[] for _ in urls]
    for number in range(WARM + requests):
        for client, seconds in zip(clients, found, strict=True):
            first, _ = await client.send()
            if number >= WARM:
                seconds.append(first)
    for client in clients:
        client.close()
    return found


async def per_token(url: str, pid: int, streams: int) -> tuple[float, int]:
    """Processor seconds of a process and its children per token of streams at once, the requests
    themselves included; and how many tokens there were."""
    process = psutil.Process(pid)
    processes = [process, *process.children(recursive=True)]

    def spent() -> float:
        return sum(sum(one.cpu_times()[:2]) for one in processes)

    async def one() -> int:
        client = await Client(url, TOKENS).open()
        try:
            return (await client.send())[1]
        finally:
            client.close()

    before = spent()
    tokens = sum(await asyncio.gather(*(one() for _ in range(streams))))
    return (spent() - before) / tokens, tokens


async def _measure(urls: dict[str, tuple[str, int]], requests: int, streams: int) -> None:
    found = await first_tokens([url for url, _ in urls.values()], requests)
    medians = [1e3 * statistics.median(seconds) for seconds in found]
    for name, median in zip(urls, medians, strict=True):
        more = "" if name == "target" else f", {median - medians[0]:.2f} ms more than the target"
        print(f"{name}: first token after {median:.2f} ms at the median of {requests}{more}")
    for name, (url, pid) in urls.items():
        if pid:
            seconds, tokens = await per_token(url, pid, streams)
            print(f"{name}: {1e6 * seconds:.1f} us per token, {streams} streams, {tokens} tokens")


def _gateway(folder: Path, target: int) -> tuple[subprocess.Popen[bytes], str]:
    config = folder / "gateway.toml"
    config.write_text(
        f'[[targets]]\nname = "t"\nurl = "http://127.0.0.1:{target}"\nkind = "openai"\n'
        'models = ["m"]\nmax_active = 4000\n'
    )
    port = free_port()
    command = [sys.executable, "-m", "tidemill", "gateway", "--config", str(config)]
    command += ["--port", str(port), "--database", "none", "--log-level", "warning"]
    return subprocess.Popen(command), f"http://127.0.0.1:{port}"


async def _until_open(url: str) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            (await Client(url, 1).open()).close()
            return
        except OSError:
            assert time.monotonic() < end, f"nothing listens at {url}"
            await asyncio.sleep(0.1)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--target-port", type=int, default=0)
    parser.add_argument("--other", help="URL of another proxy before the same target")
    parser.add_argument("--other-pid", type=int, default=0)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2**14), hard))
    port = given.target_port or free_port()
    target = multiprocessing.get_context("spawn").Process(target=_target, args=(port,), daemon=True)
    target.start()
    with tempfile.TemporaryDirectory() as folder:
        gateway, url = _gateway(Path(folder), port)
        try:
            urls = {"target": (f"http://127.0.0.1:{port}", 0), "gateway": (url, gateway.pid)}
            if given.other:
                urls["other"] = (given.other, given.other_pid)
            for at, _ in urls.values():
                asyncio.run(_until_open(at))
            time.sleep(2)  # the gateway looks at its target
            print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
            asyncio.run(_measure(urls, given.requests, given.streams))
        finally:
            gateway.terminate()
            gateway.wait()
            target.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
