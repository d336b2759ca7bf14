"""Cells of Tidemill alone: start, memory, what Python costs, idling, and the bundled model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import models
from engine_cells import How
from engines import LOGS, OURS, opened, read_rate
from harness import Server
from rows import Outcome, Row, Target
from server_cells import SHAPE, ours

from tidemill.bench.client import Target as Address
from tidemill.bench.client import stream_events
from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions

TICKS = os.sysconf("SC_CLK_TCK")
ALLOWED = 250e6  # bytes of memory beside packed weights and KV
KEPT_WITHIN = 60.0  # seconds
SETTLED_AFTER = 20.0  # seconds without work, by which an idle server has done what it does once
IDLE_SECONDS = 5.0
PAGES = "tidemill-pages"  # the thread that takes pages of the KV cache before steps need them


def _counters(server: Server) -> dict[str, float]:
    """The server's metrics without labels."""
    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    plain = [line.split() for line in lines if not line.startswith("#") and "{" not in line]
    return {name.removeprefix("tidemill_"): float(value) for name, value in plain}


def _thread_seconds(pid: int) -> dict[tuple[int, str], float]:
    """Processor seconds of each thread of a process so far, by its id and name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            name = (task / "comm").read_text().strip()
            found[int(task.name), name] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def _seconds(server: Server) -> float:
    """Processor seconds of all processes so far; asks the server nothing, which would wake it."""
    return sum(sum(_thread_seconds(pid).values()) for pid in harness.process_tree(server.pid))


@dataclass
class Usage:
    """Where processor time went between two moments, in seconds.

    Attributes:
        wall: between them.
        server: of the API process.
        engine: of the engine process without the two that follow.
        compute: of its compute threads, which are taken to be its busiest ones, as many as compute.
        pages: of its thread that takes pages of the KV cache, once each: the kernel clears them.
        native: inside native steps, by the engine's own clock.
    """

    wall: float = 0.0
    server: float = 0.0
    engine: float = 0.0
    compute: float = 0.0
    pages: float = 0.0
    native: float = 0.0
    steps: float = 0.0
    rows: float = 0.0


@contextlib.contextmanager
def watched(server: Server) -> Iterator[Usage]:
    """Fills in a `Usage` of what runs inside."""
    pids = harness.process_tree(server.pid)
    counters, begun = _counters(server), time.monotonic()
    before = {pid: _thread_seconds(pid) for pid in pids}
    usage = Usage()
    yield usage
    usage.wall = time.monotonic() - begun
    used = {
        pid: {t: s - before[pid].get(t, 0.0) for t, s in _thread_seconds(pid).items()}
        for pid in pids
    }
    after = _counters(server)
    usage.server = sum(used[server.pid].values())
    for pid in pids[1:]:
        usage.pages += sum(s for (_, name), s in used[pid].items() if name == PAGES)
        others = sorted(s for (_, name), s in used[pid].items() if name != PAGES)
        usage.compute += sum(others[-harness.threads() :])
        usage.engine += sum(others[: -harness.threads()])
    usage.native = after["compute_seconds_total"] - counters["compute_seconds_total"]
    usage.steps = after["steps_total"] - counters["steps_total"]
    usage.rows = (after["step_rows_total"] - counters["step_rows_total"]) / max(1, usage.steps)


async def _first_token(url: str, model: str) -> None:
    body = {"model": model, "prompt": list(range(16)), "max_tokens": 1, "stream": True}
    target = Address.parse(url, None)
    while True:
        try:
            async for _ in stream_events(target, "/completions", json.dumps(body).encode()):
                return
        except Exception:
            await asyncio.sleep(0.01)


def _start(cache: Path, until_kept: bool) -> float:
    """Seconds from the start of `tidemill serve` to a first token.

    Args:
        cache: where packed weights are kept.
        until_kept: the server goes on until they are, which it does beside the traffic.
    """
    path = models.gguf_file(SHAPE, "q8_0")
    command = [str(harness.TIDEMILL), "serve", str(path), "--port", "{port}", "--log-level",
               "warning", "--kv-memory", "2GiB"]  # fmt: skip
    environment = {"XDG_CACHE_HOME": str(cache)}
    log = LOGS / "tidemill-start.log"
    begun = time.monotonic()
    with harness.serving(command, "/healthz", environment=environment, log=log) as server:
        asyncio.run(_first_token(server.url, path.stem))
        seconds = time.monotonic() - begun
        while until_kept and not list(cache.rglob("*.sources")):
            if time.monotonic() - begun > KEPT_WITHIN:
                raise SystemExit("the packed weights were not kept")
            time.sleep(0.1)
        return seconds


def start(how: How) -> Outcome:
    """`serve` to first token with the file in the page cache; first: nothing packed is kept yet."""
    harness.compiled()
    cache = harness.WORK / "start-cache"
    first, second = [], []
    models.gguf_file(SHAPE, "q8_0").read_bytes()
    for _ in range(how.repetitions):
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        first.append(_start(cache, until_kept=True))
        second.append(_start(cache, until_kept=False))
    shutil.rmtree(cache, ignore_errors=True)
    rows = []
    for name, seconds, bound in (("first", first, 3.0), ("second", second, 1.0)):
        middle = statistics.median(seconds)
        rows.append(Row(
            f"start-{name}", f"`serve` to first token, {SHAPE}, Q8_0 file, {name} start",
            f"{middle:.2f} s", "", middle, Target(bound, "s", at_most=True),
        ))  # fmt: skip
    return Outcome(rows, {"first": first, "second": second})


def _load(server: Server, concurrency: int, requests: int, seed: int, output: int = 64) -> float:
    """Output tokens per second."""
    options = BenchOptions(
        base_url=server.url, concurrency=(concurrency,), requests=requests, token_ids=True,
        seed=seed, output_tokens=output, vocab=500,
    )  # fmt: skip
    return run_bench(options).points[0].output_throughput


def memory(how: How) -> Outcome:
    """Proportional memory after load that has touched the whole KV cache."""
    path = models.gguf_file(SHAPE, "q8_0")
    with opened(OURS, model=str(path), context=512, sequences=1) as (_, said):
        weights, per_token = said["weight_bytes"], said["kv_bytes_per_token"]
    found = []
    for repetition in range(how.repetitions):
        with ours("--kv-memory", "512MiB") as server:
            _load(server, 16, 32, seed=repetition, output=32)
            used = harness.proportional_bytes(server.pid)
            blocks = _counters(server)["kv_blocks"]
        found.append({"used": used, "kv": blocks * 32 * per_token})
    beyond = statistics.median(f["used"] - f["kv"] - weights for f in found)
    used = statistics.median(f["used"] for f in found)
    row = Row(
        "memory", f"memory of all processes beyond packed weights ({weights / 1e6:.0f} MB) and KV "
        f"({found[0]['kv'] / 1e6:.0f} MB), {SHAPE}, Q8_0", f"{used / 1e6:.0f} MB in all", "",
        beyond / 1e6, Target(ALLOWED / 1e6, "MB", at_most=True),
    )  # fmt: skip
    return Outcome([row], {"weights": weights, "found": found})


def overhead(how: How) -> Outcome:
    """What Python costs at batch 16, and an idle server."""
    usages, idle = [], []
    reads = []
    with ours("--kv-memory", "2GiB") as server:
        _load(server, 16, 16, seed=1)
        for repetition in range(how.repetitions):
            reads.append(read_rate())
            # Long answers: nearly all steps are 16 rows of decoding.
            with watched(server) as usage:
                _load(server, 16, 16, seed=50 + repetition, output=64 if how.quick else 160)
            usages.append(usage)
        time.sleep(SETTLED_AFTER)
        for _ in range(how.repetitions):
            before = _seconds(server)
            time.sleep(IDLE_SECONDS)
            idle.append((_seconds(server) - before) / IDLE_SECONDS)
    read = statistics.median(reads)
    outside = statistics.median(1 - u.native / u.wall for u in usages)
    python = statistics.median((u.server + u.engine) / u.wall for u in usages)
    rows = [
        Row("overhead-outside", "overhead at batch 16, 0.6B shape: wall time outside native steps",
            f"{usages[0].rows:.1f} rows a step, {1e3 * usages[0].wall / usages[0].steps:.1f} ms",
            "", outside, Target(0.08, "%", at_most=True), "", read),
        Row("overhead-python", "overhead at batch 16: processor time of server and engine Python, "
            "to wall time", f"server {statistics.median(u.server / u.wall for u in usages):.1%}, "
            f"engine {statistics.median(u.engine / u.wall for u in usages):.1%}; beside them "
            f"pages taken for KV {statistics.median(u.pages / u.wall for u in usages):.1%}",
            "", python, Target(0.08, "%", at_most=True), "", read),
        Row("idle", "idle: processor time of all processes, to one core", "", "",
            statistics.median(idle), Target(0.005, "%", at_most=True)),
    ]  # fmt: skip
    return Outcome(rows, {"usages": [vars(u) for u in usages], "idle": idle})


def brook(how: How) -> Outcome:
    """The bundled model at concurrency 32: where a step's time goes."""
    usages, rates, reads = [], [], []
    command = [str(harness.TIDEMILL), "serve", "--port", "{port}", "--log-level", "warning"]
    with harness.serving(command, log=LOGS / "tidemill-brook.log") as server:
        _load(server, 32, 64, seed=1)
        for repetition in range(how.repetitions):
            reads.append(read_rate())
            with watched(server) as usage:
                rates.append(_load(server, 32, 64 if how.quick else 256, seed=50 + repetition))
            usages.append(usage)
    outside = statistics.median(1 - u.native / u.wall for u in usages)
    u = usages[0]
    profile = ", ".join(
        f"{name} {seconds / u.wall:.0%}"
        for name, seconds in (
            ("native step (wall)", u.native), ("compute threads", u.compute),
            ("engine Python", u.engine), ("API process", u.server),
        )
    )  # fmt: skip
    row = Row(
        "brook", "brook, concurrency 32, 200 + 64 tokens: the engine's wall time outside the "
        "native step",
        f"{statistics.median(rates):.0f} output tok/s; a step of {u.rows:.0f} rows takes "
        f"{1e3 * u.wall / u.steps:.1f} ms; of wall time: {profile}",
        "", outside, Target(0.35, "%", at_most=True), "", statistics.median(reads),
    )  # fmt: skip
    measured: dict[str, Any] = {"usages": [vars(u) for u in usages], "rates": rates}
    return Outcome([row], measured)
