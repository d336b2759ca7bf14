"""From the start of the process to the first token over HTTP, with and without packed weights.

Qwen3-0.6B's shape with random weights, its file in the page cache. For each type: a first start
(an empty folder of packed weights), then second starts once the folder has been filled; medians of
the latter. A client that connects as soon as the port listens sends one request of eight tokens.
With --write, the table goes between the markers of docs/benchmarks.md.

    .venv/bin/python benchmarks/start.py [--starts 5] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import (
    MODEL,
    TIDEMILL,
    compiled,
    free_port,
    machine_line,
    make_model,
    process_tree,
    proportional_bytes,
    threads,
    write_section,
)

TYPES = ("none", "q8_0", "q4_0")
WAIT_SECONDS = 60
IDLE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Start:
    """A start.

    Attributes:
        seconds: from the start of the process to its first token.
        pss: proportional bytes of its processes then.
        idle_pss: proportional bytes when it has been idle for a while; 0 when not looked at.
        idle_cpu: processor seconds per second while idle.
    """

    seconds: float
    pss: int
    idle_pss: int = 0
    idle_cpu: float = 0.0


def first_token(port: int, until: float) -> None:
    """Connect when the port listens, ask for one token, and wait for it."""
    body = {"model": MODEL.name, "prompt": list(range(100, 108)), "max_tokens": 4, "stream": True}
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        try:
            connection.connect()
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"HTTP {response.status}: {response.read(300)!r}")
        while not response.readline().startswith(b"data:"):
            pass


def start(flags: Sequence[str], until_kept: Path | None, verbose: bool) -> Start:
    """One start; with `until_kept`, the server runs until that folder holds an entry."""
    port = free_port()
    command = [str(TIDEMILL), "serve", str(MODEL), "--port", str(port), *flags]
    began = time.monotonic()
    process = subprocess.Popen(command, stderr=None if verbose else subprocess.DEVNULL)
    try:
        first_token(port, began + WAIT_SECONDS)
        seconds = time.monotonic() - began
        pss = proportional_bytes(process.pid)
        while until_kept is not None and not list(until_kept.glob("*.sources")):
            if time.monotonic() > began + WAIT_SECONDS:
                raise SystemExit("the packed weights were not kept")
            time.sleep(0.1)
        if until_kept is None:
            return Start(seconds, pss)
        time.sleep(2)
        before = cpu_seconds(process.pid)
        time.sleep(IDLE_SECONDS)
        idle = (cpu_seconds(process.pid) - before) / IDLE_SECONDS
        return Start(seconds, pss, proportional_bytes(process.pid), idle)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all that it started."""
    ticks = 0
    for each in process_tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(quantize: str, starts: int, verbose: bool) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory(prefix="tidemill-start-", dir=MODEL.parent) as folder:
        flags = ["--quantize", quantize, "--packed-cache", folder]
        first = start(flags, Path(folder), verbose)
        later = [start(flags, None, verbose) for _ in range(starts)]
        packed = max(path.stat().st_size for path in Path(folder).iterdir()) / 2**20
    seconds = sorted(each.seconds for each in later)
    cells = [
        "bf16" if quantize == "none" else quantize,
        f"{first.seconds:.2f}",
        f"{statistics.median(seconds):.2f} ({seconds[0]:.2f} to {seconds[-1]:.2f})",
        f"{packed:.0f}",
        f"{first.pss / 2**20 - packed:.0f}",
        f"{statistics.median(each.pss for each in later) / 2**20 - packed:.0f}",
        f"{first.idle_pss / 2**20 - packed:.0f}",
        f"{first.idle_cpu:.2%}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--verbose", action="store_true", help="show what the servers say")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    make_model()
    compiled()
    with open(MODEL / "model.safetensors", "rb") as file:  # into the page cache
        while file.read(2**24):
            pass
    lines = [
        machine_line(f"{threads()} threads"),
        "",
        "| weights | first start, s | second start, s (median of "
        f"{args.starts}, range) | packed, MiB | beside it, MiB: first start | second start "
        "| idle | idle, share of a core |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [measure(kind, args.starts, args.verbose) for kind in args.types.split(",")]
    print("\n".join(lines))
    if args.write:
        write_section("start", "\n".join(lines))


if __name__ == "__main__":
    main()
