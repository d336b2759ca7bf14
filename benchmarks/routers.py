"""Routers in front of the same engines, on the same trace: time to the first token, and how much of
the prompts was cached.

Engines are simulated: HTTP servers of this process that read prompts at a set speed, one after the
other, and keep prefixes in the memory of a real engine (`memory.lease`), so that what is measured
is the choice alone. The oracle is this process itself, which sees all engines from inside.

    .venv/bin/python benchmarks/routers.py shared tidemill presumed round-robin smg vllm-router

Traces: `shared` (40 system prompts; an engine is replaced, and another's cache is filled by others,
on the way), `contended` (the same without that, and clients that reach the engines another way and
evict what these have), `skewed` (a tenth of the prompts is 40 times as long; the others are
counted) and `uniform`. smg and vllm-router are found by the variables SMG and VLLM_ROUTER, the
paths of their commands.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import BlockKey, block_key

BLOCK = 32
TOKEN_BYTES = 4
ENGINES = 4
RATE = 4000.0  # prompt tokens per second of one engine
STEP = 0.02  # seconds per generated token
SLOTS = 64
CACHE_BLOCKS = 500  # of one engine: 40 system prompts and a quarter more in four of them
SYSTEMS, SYSTEM_TOKENS = 40, 1024
MODEL = "sim"
Send = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Engine:
    """A simulated engine.

    Attributes:
        says: it tells what its cache has, as Tidemill does.
        busy: until when it reads prompts that it has.
    """

    says: bool = True
    busy: float = 0.0
    running: int = 0
    memory: KVMemory = field(init=False)
    name: str = ""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another one takes its place, with an empty cache."""
        self.memory = KVMemory((CACHE_BLOCKS,), BLOCK)
        self.name = secrets.token_hex(4)

    def fill(self) -> None:
        """Others' prompts take the whole cache."""
        for _ in range(0, CACHE_BLOCKS, 50):
            number = random.getrandbits(20)
            self.take(array("i", range(number, number + 50 * BLOCK)).tobytes())

    async def serve_others(self, rng: random.Random) -> None:
        """A prompt a second of clients that come another way."""
        while True:
            await asyncio.sleep(rng.expovariate(1.0))
            self.take(_text(rng, SYSTEM_TOKENS).encode())
            self.busy = max(time.monotonic(), self.busy) + SYSTEM_TOKENS / RATE

    def keys(self, prompt: bytes) -> list[BlockKey]:
        """Of a prompt's full blocks."""
        tokens = array("i", prompt[: len(prompt) // TOKEN_BYTES * TOKEN_BYTES])
        keys: list[BlockKey] = []
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            keys.append(block_key(keys[-1].digest if keys else b"", tokens[at : at + BLOCK]))
        return keys

    def cached(self, prompt: bytes) -> int:
        """Tokens of a prompt that it has."""
        return BLOCK * len(self.memory.find(self.keys(prompt)))

    def take(self, prompt: bytes, request: str = "") -> int:
        """Keep a prompt; how many tokens it had of it."""
        memory, keys = self.memory, self.keys(prompt)[: CACHE_BLOCKS - 1]
        found = memory.find(keys)
        lease = memory.lease(found)
        lease.grow(len(keys) * BLOCK)
        for index in range(len(found), len(keys)):
            lease.publish(index, keys[index])
        lease.close()
        if memory.changes is not None and request:
            memory.changes.prompt(request, keys, len(prompt) // TOKEN_BYTES)
        return BLOCK * len(found)

    @property
    def wait(self) -> float:
        """Seconds until a further prompt is read."""
        return max(0.0, self.busy - time.monotonic())

    # -- HTTP ----------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""

        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip().split("\r\n")
                headers = {k.lower(): v for k, _, v in (one.partition(": ") for one in lines)}
                body = await _body(reader, headers)
                if first.count(" ") != 2:  # a router that tries HTTP/2
                    return
                method, path, _ = first.split(" ")
                if method == "POST" and path.endswith("/chat/completions"):
                    await self.answer(body, headers, send)
                else:
                    await self.look(path, send)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def look(self, path: str, send: Send) -> None:
        """Any GET."""
        path, _, query = path.partition("?")
        document: Any = {"status": "ready"}
        if path == "/v1/models":
            document = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        elif path in ("/get_model_info", "/model_info"):
            document = {"model_path": MODEL, "tokenizer_path": "", "is_generation": True}
        elif path in ("/get_server_info", "/server_info"):
            document = {"model_path": MODEL, "served_model_name": MODEL, "dp_size": 1}
        elif path in ("/get_load", "/v1/loads"):
            document = [{"num_reqs": self.running, "num_waiting_reqs": 0, "num_tokens": 0}]
        elif path == "/load":
            one = {"wait": self.wait, "slots": SLOTS, "cache_tokens": CACHE_BLOCKS * BLOCK}
            document = {"protocol": 1, "models": {MODEL: {**one, "engine": self.name}}}
        elif path == "/admin/cache/changes":
            if not self.says:
                await whole(send, {}, "404 Not Found")
                return
            news = self.memory.follow().since(query.partition("=")[2])
            told = {
                "cursor": "",
                "anew": news.anew,
                "added": base64.b64encode(news.added).decode(),
                "removed": base64.b64encode(news.removed).decode(),
                "prompts": [
                    [p.request, base64.b64encode(p.leaf).decode(), p.blocks, p.tokens]
                    for p in news.prompts
                ],
            }
            model = {"identity": "sim", "block_tokens": BLOCK, "news": told}
            document = {"cursor": news.cursor, "models": {MODEL: model}}
        await whole(send, document)

    async def answer(self, body: bytes, headers: dict[str, str], send: Send) -> None:
        """A chat completion."""
        asked = json.loads(body)
        prompt = "".join(one["content"] for one in asked["messages"]).encode()
        self.running += 1
        try:
            cached = self.take(prompt, headers.get("x-request-id", ""))
            tokens = len(prompt) // TOKEN_BYTES
            begin = max(time.monotonic(), self.busy)
            self.busy = begin + 0.01 + (tokens - cached) / RATE
            await asyncio.sleep(self.busy - time.monotonic())
            await send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            await send(b"transfer-encoding: chunked\r\n\r\n")
            for _ in range(asked.get("max_tokens", 1)):
                await event(send, {"choices": [{"index": 0, "delta": {"content": "a "}}]})
                await asyncio.sleep(STEP)
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
            await event(send, end)
            details = {"cached_tokens": cached}
            usage = {"prompt_tokens": tokens, "completion_tokens": asked.get("max_tokens", 1)}
            usage["total_tokens"] = sum(usage.values())
            await event(send, {"choices": [], "usage": {**usage, "prompt_tokens_details": details}})
            await chunk(send, b"data: [DONE]\n\n")
            await chunk(send, b"")
        finally:
            self.running -= 1


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


async def whole(send: Send, document: Any, status: str = "200 OK") -> None:
    """A JSON answer."""
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    await send(f"{head}\r\n\r\n".encode() + body)


async def chunk(send: Send, data: bytes) -> None:
    """A part of an answer."""
    await send(b"%x\r\n%b\r\n" % (len(data), data))


async def event(send: Send, value: dict[str, Any]) -> None:
    """An event of a stream."""
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    await chunk(send, b"data: " + json.dumps({**base, **value}).encode() + b"\n\n")


# -- traces ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """At a time after the begin."""

    at: float
    messages: list[dict[str, str]]
    answer: int

    @property
    def long(self) -> bool:
        """A prompt of `skewed` that makes others wait."""
        return len(self.messages[-1]["content"]) > 4000 * TOKEN_BYTES


def _text(rng: random.Random, tokens: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz     "
    return "".join(rng.choices(letters, k=tokens * TOKEN_BYTES))


def trace(kind: str, seconds: float) -> list[Request]:
    """Requests of a trace; the same ones each time."""
    rng = random.Random(f"{kind} 1")
    systems = [_text(rng, SYSTEM_TOKENS) for _ in range(SYSTEMS)]
    rate = {"shared": 14.0, "contended": 10.0, "skewed": 11.0, "uniform": 14.0}[kind]
    found, at = [], 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        if kind in ("shared", "contended"):
            asked = [
                {"role": "system", "content": rng.choice(systems)},
                {"role": "user", "content": _text(rng, 24)},
            ]
        else:
            tokens = 500 if kind == "uniform" else rng.choice([150] * 9 + [6000])
            asked = [{"role": "user", "content": _text(rng, tokens)}]
        found.append(Request(at, asked, 16))
    return found


# -- routers ---------------------------------------------------------------------------------------

Start = Callable[[list[str], int, Path], list[str]]
TIDEMILL = [sys.executable, "-m", "tidemill"]


def _gateway(policy: str) -> Start:
    def command(urls: list[str], port: int, folder: Path) -> list[str]:
        rows = "".join(
            f'[[targets]]\nname = "e{i}"\nurl = "{url}"\n\n' for i, url in enumerate(urls)
        )
        file = folder / "gateway.toml"
        file.write_text(f'{rows}[routing]\npolicy = "{policy}"\n')
        more = ("--port", str(port), "--database", "none", "--log-level", "error")
        return [*TIDEMILL, "gateway", "--config", str(file), *more]

    return command


def _other(variable: str, *words: str) -> Start:
    def command(urls: list[str], port: int, folder: Path) -> list[str]:
        program = os.environ[variable]
        return [program, *words, "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port)]

    return command


ROUTERS: dict[str, Start] = {
    "tidemill": _gateway("predicted"),
    "presumed": _gateway("predicted"),  # engines do not say what they have
    "least-connections": _gateway("least-connections"),
    "round-robin": _gateway("round-robin"),
    "smg": _other("SMG", "launch", "--policy", "cache_aware"),
    "smg-round-robin": _other("SMG", "launch", "--policy", "round_robin"),
    "vllm-router": _other("VLLM_ROUTER", "--policy", "cache_aware"),
}


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def _ready(client: httpx.AsyncClient, url: str, process: subprocess.Popen[bytes]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"the router has ended with {process.returncode}")
        try:
            answer = await client.post(f"{url}/v1/chat/completions", json={**body, "stream": True})
            if answer.status_code == 200:
                return
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.2)
    raise RuntimeError("the router is not ready")


# -- a run -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """What was measured."""

    firsts: list[float] = field(default_factory=list)
    cached: int = 0
    prompt: int = 0
    failed: list[str] = field(default_factory=list)

    def row(self, name: str) -> str:
        """For a table."""
        firsts = sorted(self.firsts)
        p50, p90, p99 = (1e3 * firsts[int(q * (len(firsts) - 1))] for q in (0.5, 0.9, 0.99))
        hit = self.cached / max(1, self.prompt)
        failed = f"; {len(self.failed)} failed: {self.failed[0][:80]}" if self.failed else ""
        return (
            f"{name:18} n {len(firsts)} first token p50 {p50:.0f} p90 {p90:.0f} p99 {p99:.0f} ms; "
            f"cached {hit:.3f}{failed}"
        )


async def _ask(client: httpx.AsyncClient, url: str, request: Request, run: Run) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"model": MODEL, "messages": request.messages, "max_tokens": request.answer, **options}
    began, first, usage = time.monotonic(), None, None
    try:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                run.failed.append(f"{answer.status_code} {(await answer.aread())[:200]!r}")
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    first = first or time.monotonic()
                    if '"usage"' in line:
                        usage = json.loads(line[6:]).get("usage") or usage
    except httpx.HTTPError as error:
        run.failed.append(repr(error))
        return
    if first is None or usage is None:
        run.failed.append("no first token or usage")
        return
    run.firsts.append(first - began)
    run.prompt += usage["prompt_tokens"]
    run.cached += usage["prompt_tokens_details"]["cached_tokens"]


def _best(engines: list[Engine], request: Request) -> Engine:
    """As the oracle has it: the engine whose first token comes first."""
    prompt = "".join(one["content"] for one in request.messages).encode()
    tokens = len(prompt) // TOKEN_BYTES

    def seconds(engine: Engine) -> tuple[float, int]:
        return engine.wait + (tokens - engine.cached(prompt)) / RATE, engine.running

    return min(engines, key=seconds)


async def measure(name: str, kind: str, seconds: float) -> Run:
    """One router on one trace; what came before its first quarter is not counted."""
    engines = [Engine(says=name == "tidemill") for _ in range(ENGINES)]
    servers = [await asyncio.start_server(e.serve, "127.0.0.1", 0, limit=1 << 22) for e in engines]
    urls = [f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}" for s in servers]
    requests, run, warm = trace(kind, seconds), Run(), Run()
    loop = asyncio.get_running_loop()
    process: subprocess.Popen[bytes] | None = None
    coming = list[asyncio.Future[None]]()
    limits = httpx.Limits(max_connections=500, max_keepalive_connections=500)
    with tempfile.TemporaryDirectory() as folder:
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            try:
                url = ""
                if name != "oracle":
                    port = _free_port()
                    command = ROUTERS[name](urls, port, Path(folder))
                    with (Path(folder) / "log").open("wb") as log:
                        process = subprocess.Popen(
                            command, stdout=log, stderr=log, start_new_session=True
                        )
                    url = f"http://127.0.0.1:{port}"
                    await _ready(client, url, process)
                began, tasks = loop.time(), list[asyncio.Task[None]]()
                if kind == "shared":
                    loop.call_at(began + seconds * 0.4, engines[1].restart)
                    loop.call_at(began + seconds * 0.65, engines[2].fill)
                if kind == "contended":
                    others = [e.serve_others(random.Random(i)) for i, e in enumerate(engines)]
                    coming = [asyncio.ensure_future(one) for one in others]
                places = dict(zip(map(id, engines), urls, strict=True))
                for request in requests:
                    await asyncio.sleep(began + request.at - loop.time())
                    to = url or places[id(_best(engines, request))]
                    counts = request.at > seconds / 4 and not request.long
                    into = run if counts else warm
                    tasks.append(asyncio.ensure_future(_ask(client, to, request, into)))
                await asyncio.gather(*tasks)
            finally:
                for one in coming:
                    one.cancel()
                if process is not None:
                    os.killpg(process.pid, signal.SIGTERM)
                    process.wait()
                for server in servers:
                    server.close()
    return run


def main(kind: str, seconds: float, names: list[str]) -> None:
    """Measure routers one after the other."""
    count = len(trace(kind, seconds))
    print(f"{kind}: {count} requests in {seconds:g} s over {ENGINES} engines", flush=True)
    for name in names:
        try:
            print(asyncio.run(measure(name, kind, seconds)).row(name), flush=True)
        except Exception as error:
            print(f"{name:18} {error!r}", flush=True)


if __name__ == "__main__":
    arguments = iter(sys.argv[1:])
    chosen = next(arguments, "shared")
    rest = list(arguments) or ["oracle", "tidemill", "presumed", "round-robin"]
    main(chosen, float(os.environ.get("SECONDS", "40")), rest)
