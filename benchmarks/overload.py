"""Overload at a real size: fairness, a long prompt beside streams, ten times too many requests.

Qwen3-0.6B's exact shape with random weights (q8_0), over `tidemill serve` and real sockets; clients
are told apart by their loopback addresses. Writes .work/overload.json, prints a Markdown table and
writes it between the markers of docs/benchmarks.md. About eight minutes; `--only` runs a part.

    .venv/bin/python benchmarks/overload.py [--only fairness,long,goodput] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import harness

from tidemill.backends import native

RESULT = harness.WORK / "overload.json"
ONE, OTHER = "127.0.0.1", "127.0.0.2"
STREAM_TOKENS = 1024
QUIET_SECONDS = 10.0


@dataclass
class Answer:
    """One request: when it was sent, when its status and its tokens came (monotonic seconds)."""

    sent: float = 0.0
    status: int = 0
    answered: float = 0.0
    retry_after: float = 0.0
    tokens: list[float] = field(default_factory=list)
    whole: bool = False

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.sent


async def ask(
    url: str, ids: list[int], tokens: int, client: str = ONE, into: Answer | None = None
) -> Answer:
    """Stream a completion over a connection of its own; `into` can be looked at meanwhile."""
    host, port = url.removeprefix("http://").split("/")[0].split(":")
    fields = {
        "prompt": ids, "max_tokens": tokens, "stream": True, "ignore_eos": True,
        "temperature": 0,
    }  # fmt: skip
    body = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(client, 0))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    answer = into or Answer()
    answer.sent = time.monotonic()
    try:
        writer.write(head.encode() + body)
        answer.status = int((await reader.readline()).split()[1])
        answer.answered = time.monotonic()
        while line := (await reader.readline()).strip().lower():
            if line.startswith(b"retry-after:"):
                answer.retry_after = float(line.split(b":")[1])
        while line := await reader.readline():
            if b'"choices":[{' in line:
                answer.tokens.append(time.monotonic())
            answer.whole = answer.whole or b"[DONE]" in line
    finally:
        writer.close()
    return answer


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000, 100_000) for _ in range(length)]


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


@contextlib.asynccontextmanager
async def background(*jobs: Any) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Runs jobs; what is left of them is cancelled, which closes their connections."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fairness(url: str, count: int) -> dict[str, float]:
    """One client's first tokens, alone and beside another with 200 requests in the queue."""

    async def one_at_a_time(seed: int) -> list[float]:
        return [(await ask(url, prompt(200, seed + i), 16, OTHER)).ttft for i in range(count)]

    await ask(url, prompt(200, 1), 16)
    alone = await one_at_a_time(10_000)
    flood = [ask(url, prompt(200, 100 + i), 64) for i in range(200)]
    async with background(*flood):
        await asyncio.sleep(5)
        beside = await one_at_a_time(20_000)
    return {
        "alone_p50_ms": 1e3 * quantile(alone, 0.5),
        "alone_p95_ms": 1e3 * quantile(alone, 0.95),
        "beside_p50_ms": 1e3 * quantile(beside, 0.5),
        "beside_p95_ms": 1e3 * quantile(beside, 0.95),
        "ratio_p95": quantile(beside, 0.95) / quantile(alone, 0.95),
    }


async def long_prompt(url: str, length: int, limit: float) -> dict[str, float]:
    """Gaps of eight streams while a long prompt is read, for at most `limit` seconds of it.

    The streams are long answers (STREAM_TOKENS). They are not replaced when they end: what is asked
    is what one prompt does to streams, not what newcomers do. Their gaps before the prompt comes
    say how steady the machine is.
    """
    streams = [Answer() for _ in range(8)]
    jobs = [ask(url, prompt(100, i), STREAM_TOKENS, into=s) for i, s in enumerate(streams)]
    async with background(*jobs):
        await asyncio.sleep(4 + QUIET_SECONDS)
        begun = time.monotonic()
        read = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                read = await ask(url, prompt(length, 77), 1)
        end = time.monotonic()

    def gaps_of(start: float, stop: float) -> list[float]:
        return [b - a for s in streams for a, b in pairwise(s.tokens) if start < b < stop]

    alone, gaps = gaps_of(begun - QUIET_SECONDS, begun), gaps_of(begun, end)
    return {
        "alone_p50_ms": 1e3 * quantile(alone, 0.5),
        "alone_p99_ms": 1e3 * quantile(alone, 0.99),
        "alone_max_ms": 1e3 * max(alone),
        "prompt_tokens": length,
        "itl_p50_ms": 1e3 * quantile(gaps, 0.5),
        "itl_p99_ms": 1e3 * quantile(gaps, 0.99),
        "itl_max_ms": 1e3 * max(gaps),
        "prompt_ttft_s": read.ttft if read is not None else float("nan"),
    }


async def goodput(url: str, peak_seconds: float, seconds: float) -> dict[str, float]:
    """Tokens of whole answers per second: at the best, and with ten times as many requests."""
    seeds = iter(range(10**6, 10**9))
    answers: list[Answer] = []

    async def closed_loop() -> None:
        while True:
            answers.append(Answer())
            await ask(url, prompt(200, next(seeds)), 64, into=answers[-1])

    def rate(begun: float, end: float) -> float:
        # Answers still under way at the end are counted so far: they will be whole.
        moments = [t for a in answers if a.status == 200 for t in a.tokens]
        return sum(begun < t <= end for t in moments) / (end - begun)

    async with background(*(closed_loop() for _ in range(32))):
        await asyncio.sleep(10 + peak_seconds)
    end = time.monotonic()
    peak = rate(end - peak_seconds, end)
    answers.clear()
    kept: list[bool] = []
    refused: list[float] = []

    async def follower() -> None:
        ids, told = prompt(200, next(seeds)), False
        while True:
            answers.append(Answer())
            answer = await ask(url, ids, 64, into=answers[-1])
            if told:
                kept.append(answer.status == 200)
            if answer.status == 200:
                return
            refused.append(answer.answered - answer.sent)
            await asyncio.sleep(answer.retry_after)
            told = True

    begun, interval = time.monotonic(), 64 / (10 * peak)
    async with background() as tasks:
        while (now := time.monotonic()) < begun + seconds:
            due = begun + interval * len(tasks)
            await asyncio.sleep(max(0.0, due - now))
            tasks.append(asyncio.create_task(follower()))
        overloaded = rate(begun + 10, time.monotonic())
    return {
        "peak_tokens_per_s": peak,
        "overload_tokens_per_s": overloaded,
        "ratio": overloaded / peak,
        "requests": len(tasks),
        "refusals": len(refused),
        "refused_p50_ms": 1e3 * quantile(refused, 0.5),
        "refused_p99_ms": 1e3 * quantile(refused, 0.99),
        "came_back_as_told": len(kept),
        "honoured": sum(kept) / max(1, len(kept)),
    }


def table(results: dict[str, Any]) -> str:
    lines = [
        harness.machine_line(f"weights q8_0, {harness.threads()} threads"),
        "",
        "| what | value | wanted | read GB/s beside |",
        "|---|---|---|---|",
    ]
    if r := results.get("fairness"):
        lines.append(
            f"| p95 TTFT of one at a time: alone, beside 200 queued | {r['alone_p95_ms']:.0f} ms, "
            f"{r['beside_p95_ms']:.0f} ms ({r['ratio_p95']:.2f} times) | at most 2 times "
            f"| {r['read']:.1f} |"
        )
    if r := results.get("long"):
        lines.append(
            f"| ITL of 8 streams beside a prompt of {r['prompt_tokens']:.0f}: p50, p99, worst "
            f"(its first token after {r['prompt_ttft_s']:.0f} s) | {r['itl_p50_ms']:.0f}, "
            f"{r['itl_p99_ms']:.0f}, {r['itl_max_ms']:.0f} ms | p99 at most 150 ms "
            f"| {r['read']:.1f} |"
        )
        lines.append(
            f"| the same before the prompt came | {r['alone_p50_ms']:.0f}, "
            f"{r['alone_p99_ms']:.0f}, {r['alone_max_ms']:.0f} ms | | |"
        )
    if r := results.get("goodput"):
        lines += [
            f"| output tokens per second: peak, at ten times the load | "
            f"{r['peak_tokens_per_s']:.1f}, {r['overload_tokens_per_s']:.1f} "
            f"({r['ratio']:.0%}) | at least 90 % | {r['read']:.1f} |",
            f"| refusals of {r['requests']} requests: p50, p99 | {r['refused_p50_ms']:.0f}, "
            f"{r['refused_p99_ms']:.0f} ms ({r['refusals']}) | within 50 ms | |",
            f"| came back as told, and were taken | {r['came_back_as_told']}, "
            f"{r['honoured']:.0%} | at least 80 % | |",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="fairness,long,goodput")
    parser.add_argument("--quick", action="store_true", help="a shorter look, not for the table")
    args = parser.parse_args()
    model = harness.make_model()
    quick = args.quick
    parts = {
        "fairness": ([], lambda url: fairness(url, 8 if quick else 24)),
        "long": ([], lambda url: long_prompt(url, 4096 if quick else 16_384, 60 if quick else 240)),
        # Little room, so that what is told to come back does so within the run.
        "goodput": (
            ["--max-num-seqs", "32", "--max-queue-tokens", "3000"],
            lambda url: goodput(url, 15 if quick else 40, 30 if quick else 90),
        ),
    }
    results: dict[str, Any] = {}
    for name in args.only.split(","):
        flags, run = parts[name]
        read = native.read_bandwidth(harness.threads())
        flags = ["--quantize", "q8_0", "--log-level", "warning", *flags]
        with harness.tidemill(model, *flags) as server:
            results[name] = {**asyncio.run(run(server.url)), "read": read / 1e9}
        print(name, json.dumps(results[name]), flush=True)
    RESULT.write_text(json.dumps(results, indent=2))
    text = table(results)
    print(text)
    if not quick and set(results) == set(parts):
        harness.write_section("overload", text)


if __name__ == "__main__":
    main()
