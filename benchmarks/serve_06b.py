"""Serve a real size: Qwen3-0.6B's exact shape with random weights, through `tidemill bench`.

Two loads on one server process (q8_0 weights): 16 concurrent streams of 200 + 64 tokens, and 8
short streams while one prompt of 8k tokens is read. The machine's read bandwidth is measured beside
each. Prints a Markdown table and writes it between the markers of docs/benchmarks.md.

    .venv/bin/python benchmarks/serve_06b.py [--quantize q8_0] [--requests 64] [--long 8192]
"""

from __future__ import annotations

import argparse
import asyncio
import json

import harness

from tidemill.backends import native
from tidemill.base.clock import monotonic
from tidemill.bench.client import Target, stream_events
from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import PointReport, RequestTrace
from tidemill.bench.summary import summarize


async def _timed(
    target: Target, prompt: list[int], tokens: int, zero: float, start: float
) -> RequestTrace:
    await asyncio.sleep(start)
    trace = RequestTrace(start=monotonic() - zero, input_tokens=len(prompt))
    body = {
        "model": "x", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    body["model"] = harness.MODEL.name
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
    model = harness.make_model()
    threads = harness.threads()
    lines = [
        harness.machine_line(f"weights {args.quantize}, {threads} threads"),
        "",
        "| load | done | output tok/s | TTFT ms p50 / p99 | ITL ms p50 / p99 "
        "| TPOT ms p50 / p99 | E2E ms p50 / p99 | read GB/s beside |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with harness.tidemill(model, "--quantize", args.quantize) as server:
        url = server.url
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
        memory = harness.proportional_bytes(server.pid)
    lines += [
        "",
        f"The prompt of {args.long} tokens had its first token after "
        f"{long.arrivals[0] - long.start:.1f} s. Ready {server.ready:.1f} s after the process "
        f"started; proportional memory of both processes at the end {memory / 2**30:.2f} GiB.",
    ]
    table = "\n".join(lines)
    print(table)
    harness.write_section("serve_06b", table)


if __name__ == "__main__":
    main()
