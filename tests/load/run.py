"""What many connections and many streams cost one server; run by `make load`.

Two measurements on the bundled model: 5,000 idle connections (resident memory of both processes),
and 1,000 streams at once, each of which must end with its usage and `[DONE]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence

import httpx
import psutil
from helpers.real_server import RealServer

MIB = 2**20


def _resident(server: RealServer) -> int:
    processes = [psutil.Process(server.process.pid), server.engine()]
    return sum(p.memory_info().rss for p in processes)


async def _idle(server: RealServer, count: int, hold: float) -> None:
    """Open connections that have had one answer each, and then say nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    before = _resident(server)
    writers = []
    gate = asyncio.Semaphore(200)

    async def one() -> None:
        async with gate:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            writers.append(writer)

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(count)))
    opened = time.monotonic() - began
    await asyncio.sleep(hold)
    cost = (_resident(server) - before) / MIB
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        began = time.monotonic()
        assert (await http.get("/readyz")).status_code == 200
        probe = time.monotonic() - began
    for writer in writers:
        writer.close()
    print(
        f"{count} idle connections: {cost:.1f} MiB more resident, opened in {opened:.1f} s, "
        f"/readyz beside them in {probe * 1000:.0f} ms"
    )
    assert cost < 200, cost


async def _stream(http: httpx.AsyncClient, index: int, tokens: int) -> tuple[float, float, int]:
    body = {
        "prompt": f"The river {index}",
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": index,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    first, last, usage = 0.0, "", 0
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            first = first or time.monotonic() - began
            last = line[6:]
            if last.startswith("{"):
                event = json.loads(last)
                assert "error" not in event, event
                usage = (event.get("usage") or {}).get("completion_tokens", usage)
    assert last == "[DONE]" and usage == tokens, (last, usage)
    return first, time.monotonic() - began, usage


async def _streams(server: RealServer, count: int, tokens: int) -> None:
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=1800, limits=limits) as http:
        began = time.monotonic()
        results = await asyncio.gather(
            *(_stream(http, i, tokens) for i in range(count)), return_exceptions=True
        )
        seconds = time.monotonic() - began
    failed = [r for r in results if isinstance(r, BaseException)]
    done = [r for r in results if not isinstance(r, BaseException)]
    if done:
        first = statistics.quantiles([r[0] for r in done], n=20)
        print(
            f"{count} streams of {tokens} tokens: {len(failed)} failed, {seconds:.1f} s, "
            f"{sum(r[2] for r in done) / seconds:.0f} tokens/s, "
            f"time to first token p50 {first[9]:.2f} s, p95 {first[18]:.2f} s"
        )
    assert not failed, failed[:3]
    stats = server.stats()
    assert stats["running"] == stats["queued"] == stats["blocks_used"] == 0, stats


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both measurements against one server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=5000, help="idle connections")
    parser.add_argument("--hold", type=float, default=5.0, help="seconds that they are held")
    parser.add_argument("--streams", type=int, default=1000, help="streams at once")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each stream")
    options = parser.parse_args(arguments)
    wanted = max(options.idle, options.streams) + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        if hard < wanted:
            print(f"{wanted} open files are needed; `ulimit -Hn` is {hard}", file=sys.stderr)
            return 2
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with RealServer() as server:
        asyncio.run(_idle(server, options.idle, options.hold))
        asyncio.run(_streams(server, options.streams, options.tokens))
        code = server.stop()
        assert code == 0 and "Traceback" not in server.text, server.text[-2000:]
    return 0


if __name__ == "__main__":
    sys.exit(main())
