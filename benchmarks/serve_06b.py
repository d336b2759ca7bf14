"""Serve a real size: Qwen3-0.6B's exact shape with random weights, through `tidemill bench`.

Two loads on one server process (q8_0 weights): 16 concurrent streams of 200 + 64 tokens, and 8
short streams while one prompt of 8k tokens is read. The machine's read bandwidth is measured beside
each. Prints a Markdown table and writes it between the markers of docs/benchmarks.md.

    .venv/bin/python benchmarks/serve_06b.py [--quantize q8_0] [--requests 64] [--long 8192]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tidemill.backends import native
from tidemill.base.clock import monotonic
from tidemill.bench.client import Target, get_json, stream_events
from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions, PointReport, RequestTrace
from tidemill.bench.report import summarize
from tidemill.cli.machine import describe_cpu

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / ".work" / "models" / "qwen3-0.6b"
DOC = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- serve_06b: begin -->", "<!-- serve_06b: end -->"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def make_model() -> None:
    if not (MODEL / "config.json").exists():
        script = ROOT / "benchmarks" / "make_model.py"
        command = [sys.executable, str(script), "qwen3-0.6b", str(MODEL)]
        subprocess.run(command, check=True, cwd=ROOT)


@contextlib.contextmanager
def server(extra: list[str]) -> Iterator[tuple[str, float, int]]:
    """Base URL, seconds until ready, process id."""
    port = free_port()
    command = [str(ROOT / ".venv/bin/tidemill"), "serve", str(MODEL), "--port", str(port), *extra]
    start = monotonic()
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"the server exited with {process.returncode}")
            with contextlib.suppress(OSError, Exception):
                asyncio.run(get_json(Target.parse(url, None), "/readyz"))
                break
            time.sleep(0.05)
        yield f"{url}/v1", monotonic() - start, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def resident_bytes(pid: int) -> int:
    """Proportional set size of a process and its children, in bytes."""
    total = 0
    tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for p in [pid, *map(int, tasks)]:
        for line in Path(f"/proc/{p}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


async def _timed(
    target: Target, prompt: list[int], tokens: int, zero: float, start: float
) -> RequestTrace:
    await asyncio.sleep(start)
    trace = RequestTrace(start=monotonic() - zero, input_tokens=len(prompt))
    body = {
        "model": "x", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    body["model"] = MODEL.name
    async for events in stream_events(target, "/completions", json.dumps(body).encode()):
        now = monotonic() - zero
        # A token may have no printable text yet, so every chunk with choices counts.
        trace.arrivals += [now for e in events if e != b"[DONE]" and b'"choices":[{' in e]
    trace.end = monotonic() - zero
    trace.output_tokens = len(trace.arrivals)
    return trace


async def mixed(url: str, long: int, short_tokens: int) -> tuple[PointReport, RequestTrace]:
    """8 short streams; a long prompt arrives when they are under way."""
    target = Target.parse(url, None)
    zero = monotonic()
    shorts = [
        _timed(target, [(7 * i + j) % 1000 for j in range(100)], short_tokens, zero, 0.0)
        for i in range(8)
    ]
    long_one = _timed(target, [(j * j) % 1000 for j in range(long)], 16, zero, 2.0)
    *short_traces, long_trace = await asyncio.gather(*shorts, long_one)
    return summarize("mixed", 8, list(short_traces)), long_trace


def row(label: str, point: PointReport, bandwidth: float) -> str:
    cells = [label, f"{point.completed}/{point.requests}", f"{point.output_throughput:.1f}"]
    for name in ("ttft", "itl", "tpot", "e2e"):
        d = point.latencies[name]
        cells.append(f"{d['p50']:.0f} / {d['p99']:.0f}")
    cells.append(f"{bandwidth / 1e9:.1f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quantize", default="q8_0")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--long", type=int, default=8192)
    parser.add_argument("--short-tokens", type=int, default=256)
    args = parser.parse_args()
    make_model()
    threads = len(os.sched_getaffinity(0))
    lines = [
        f"{describe_cpu()}; Python {platform.python_version()}; weights {args.quantize}, "
        f"{threads} threads, {time.strftime('%Y-%m-%d')}.",
        "",
        "| load | done | output tok/s | TTFT ms p50 / p99 | ITL ms p50 / p99 "
        "| TPOT ms p50 / p99 | E2E ms p50 / p99 | read GB/s beside |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with server(["--quantize", args.quantize]) as (url, ready, pid):
        for streams in (1, 16):
            before = native.read_bandwidth(threads)
            options = BenchOptions(
                base_url=url,
                concurrency=(streams,),
                requests=args.requests if streams > 1 else 8,
                token_ids=True,
            )
            point = run_bench(options).points[0]
            lines.append(row(f"{streams} x (200 + 64)", point, before))
        before = native.read_bandwidth(threads)
        short, long = asyncio.run(mixed(url, args.long, args.short_tokens))
        label = f"8 x (100 + {args.short_tokens}) beside one prompt of {args.long}"
        lines.append(row(label, short, before))
        memory = resident_bytes(pid)
    lines += [
        "",
        f"The prompt of {args.long} tokens had its first token after "
        f"{long.arrivals[0] - long.start:.1f} s. Ready {ready:.1f} s after the process started; "
        f"proportional memory of both processes at the end {memory / 2**30:.2f} GiB.",
    ]
    table = "\n".join(lines)
    print(table)
    if DOC.exists() and BEGIN in (text := DOC.read_text()):
        head, _, rest = text.partition(BEGIN)
        DOC.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
