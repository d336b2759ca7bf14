"""Cells over HTTP: the same requests to every server in turn; peers that wait are stopped.

Servers: `tidemill serve` with Q8_0 weights beside llama-server with the same file, and with the
source weights in int8 (`--quantize int8`: a scale per output channel and per token) beside vLLM
with int8 weights and activations (its output layer in bfloat16, ours in int8).
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import harness
import models
import peers
from engine_cells import How
from engines import LOGS, OURS, Samples, read_rate
from harness import Server
from rows import Outcome, Row, Target

from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import PointReport

SHAPE = "qwen3-0.6b"
OURS_INT8 = f"{OURS}_int8"
NAMES = {
    OURS: "Tidemill Q8_0", OURS_INT8: "Tidemill int8", "llama_cpp": "llama-server Q8_0",
    "vllm": "vLLM int8",
}  # fmt: skip
# The peers, and whose figure of ours stands beside each: the type nearest to its own.
BESIDE = {"llama_cpp": OURS, "vllm": OURS_INT8}


def ours(*flags: str) -> contextlib.AbstractContextManager[Server]:
    """Tidemill with Q8_0 weights."""
    log = LOGS / "tidemill-serve.log"
    path = models.gguf_file(SHAPE, "q8_0")
    return harness.tidemill(path, "--log-level", "warning", *flags, log=log)


def ours_int8(*flags: str) -> contextlib.AbstractContextManager[Server]:
    """Tidemill with int8 weights and activations, of the same source as vLLM's."""
    log = LOGS / "tidemill-serve-int8.log"
    path = harness.make_model(SHAPE)
    return harness.tidemill(path, "--quantize", "int8", "--log-level", "warning", *flags, log=log)


def llama_server(slots: int, context: int) -> contextlib.AbstractContextManager[Server]:
    """llama-server with so many slots of so many tokens; its prompt cache is on, as it is by
    default."""
    peer = peers.get("llama_cpp")
    command = [
        peer.tools / "llama-server", "-m", models.gguf_file(SHAPE, "q8_0"), "--port", "{port}",
        "-t", harness.threads(), "-np", slots, "-c", slots * context, "--no-ui",
    ]  # fmt: skip
    return harness.serving(
        list(map(str, command)), "/health", environment=peer.environment,
        log=LOGS / "llama-server.log",
    )  # fmt: skip


def vllm_server(slots: int, context: int) -> contextlib.AbstractContextManager[Server]:
    """vLLM with int8 weights and activations."""
    peer = peers.get("vllm")
    command = [
        peer.tools / "vllm", "serve", models.quantized_folder(SHAPE, "w8a8"), "--port", "{port}",
        "--max-model-len", context, "--max-num-seqs", slots,
    ]  # fmt: skip
    return harness.serving(
        list(map(str, command)), "/health", environment=peer.environment,
        log=LOGS / "vllm-serve.log", limit=900,
    )  # fmt: skip


@dataclass
class Contenders:
    """Servers that are up, and those that could not be had."""

    servers: dict[str, Server]
    missing: dict[str, str]


@contextlib.contextmanager
def contenders(
    starts: Mapping[str, Callable[[], contextlib.AbstractContextManager[Server]]],
) -> Iterator[Contenders]:
    """Start servers one after another. Peers are stopped (SIGSTOP) once they are ready; ours is
    not: a stop within a step would be taken for the step's own time, and idle it costs nothing."""
    up = Contenders({}, {})
    with contextlib.ExitStack() as stack:
        for name, start in starts.items():
            try:
                server = stack.enter_context(start())
            except (peers.PeerMissing, SystemExit) as error:
                up.missing[name] = str(error)
                continue
            if name in BESIDE:
                server.pause()
            up.servers[name] = server
        yield up


def turns(
    up: Contenders, options: Callable[[int], dict[str, Any]], repetitions: int
) -> tuple[dict[str, list[PointReport]], dict[str, Samples]]:
    """Give every server the same requests once per repetition, beginning with another each time.

    Args:
        options: repetition -> of the load; prompts of repetitions must differ by seed, so that no
            cache knows them.
    """
    points: dict[str, list[PointReport]] = {name: [] for name in up.servers}
    rates = {name: Samples() for name in up.servers}
    names = list(up.servers)
    for repetition in range(repetitions):
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            server = up.servers[name]
            before = read_rate()
            server.resume()
            try:
                how = {"token_ids": True, "seed": 100 + repetition, **options(repetition)}
                point = run_bench(BenchOptions(base_url=server.url, **how)).points[0]
            finally:
                if name in BESIDE:
                    server.pause()
            points[name].append(point)
            rates[name].values.append(point.output_throughput)
            rates[name].reads.append((before + read_rate()) / 2)
            if point.completed < point.requests:
                print(f"{name}: {point.errors} {point.error_details}", flush=True)
    return points, rates


def _median(points: list[PointReport], latency: str, which: str) -> float:
    return statistics.median(p.latencies[latency][which] for p in points)


def _measured(points: dict[str, list[PointReport]], rates: dict[str, Samples]) -> dict[str, Any]:
    return {
        "points": {name: [asdict(p) for p in of] for name, of in points.items()},
        "rates": {name: asdict(s) for name, s in rates.items()},
    }


# concurrency -> [(peer, figure, unit, target)], each a row: ours divided by the peer's.
_HTTP: dict[int, list[tuple[str, str, str, Target]]] = {
    1: [
        ("vllm", "ttft p50", "ms", Target(1.0, "x", at_most=True)),
        ("vllm", "tpot p50", "ms", Target(0.65, "x", at_most=True)),
    ],
    16: [
        ("vllm", "output", "tok/s", Target(1.5, "x")),
        ("llama_cpp", "output", "tok/s", Target(4.0, "x")),
        ("vllm", "ttft p99", "ms", Target(1.0, "x", at_most=True)),
        ("llama_cpp", "ttft p99", "ms", Target(1.0, "x", at_most=True)),
        ("vllm", "itl p99", "ms", Target(1.0, "x", at_most=True)),
        ("llama_cpp", "itl p99", "ms", Target(1.0, "x", at_most=True)),
    ],
}


def http(how: How, concurrency: int) -> Outcome:
    """200 + 64 tokens streamed."""
    requests = (8 if concurrency == 1 else 64) // (4 if how.quick else 1)
    starts = {
        OURS: lambda: ours("--kv-memory", "2GiB"),
        OURS_INT8: lambda: ours_int8("--kv-memory", "2GiB"),
        "llama_cpp": lambda: llama_server(concurrency, 512),
        "vllm": lambda: vllm_server(max(concurrency, 16), 4096),
    }
    with contenders(starts) as up:
        points, rates = turns(
            up, lambda _: {"concurrency": (concurrency,), "requests": requests}, how.repetitions
        )

    def value(name: str, what: str) -> float:
        if name not in points:
            return float("nan")
        if what == "output":
            return rates[name].median
        return _median(points[name], *what.split())

    rows = []
    for peer, what, unit, target in _HTTP[concurrency]:
        mine, theirs = value(BESIDE[peer], what), value(peer, what)
        label = "output" if what == "output" else what.upper().replace("P", "p", 1)
        label = {"tpot p50": "TPOT p50"}.get(what, label)
        text = f"{theirs:.4g} {unit}" if peer in points else f"missing: {up.missing[peer]}"[:200]
        rows.append(Row(
            f"http-{concurrency}-{peer}-{what.replace(' ', '-')}",
            f"HTTP, concurrency {concurrency}, 200 + 64 tokens: {label} against {NAMES[peer]}",
            f"{mine:.4g} {unit}", text, mine / theirs, target, "",
            rates[BESIDE[peer]].read if BESIDE[peer] in rates else 0.0,
        ))  # fmt: skip
    return Outcome(rows, {**_measured(points, rates), "missing": up.missing})


SYSTEM, OWN, ANSWER, CLIENTS = 2000, 40, 32, 32


def shared_prompt(how: How) -> Outcome:
    """32 requests with one system prompt: a hit's first token, and all of them together."""
    system, clients = (500, 8) if how.quick else (SYSTEM, CLIENTS)
    load = {
        "input_tokens": system + OWN, "output_tokens": ANSWER, "shared_prefix": system, "warmup": 0,
    }  # fmt: skip
    hits, misses = [], []
    with contenders({OURS: lambda: ours("--kv-memory", "2GiB")}) as up:
        for repetition in range(how.repetitions):
            alone = {**load, "seed": 900 + repetition}
            miss, _ = turns(up, lambda _, a=alone: {**a, "requests": 1}, 1)
            # The same seed: the warm-up repeats what was just asked, the others share its prefix.
            hit, _ = turns(up, lambda _, a=alone: {**a, "requests": 5, "warmup": 1}, 1)
            misses.append(_median(miss[OURS], "ttft", "p50"))
            hits.append(_median(hit[OURS], "ttft", "p50"))
    share = statistics.median(hits) / statistics.median(misses)
    together = {**load, "concurrency": (clients,), "requests": clients}
    starts = {
        OURS: lambda: ours("--kv-memory", "2GiB"),
        "llama_cpp": lambda: llama_server(clients, system + OWN + ANSWER + 32),
    }
    with contenders(starts) as up:
        points, rates = turns(up, lambda _: together, how.repetitions)
    seconds = {name: statistics.median(p.seconds for p in of) for name, of in points.items()}
    theirs = seconds.get("llama_cpp", float("nan"))
    work = f"shared {system}-token system prompt"
    rows = [
        Row("shared-hit", f"{work}: TTFT of a hit alone, to a miss's",
            f"{statistics.median(hits):.0f} of {statistics.median(misses):.0f} ms", "", share,
            Target(0.05, "%", at_most=True)),
        Row("shared-total", f"{work}, {clients} requests of {OWN} + {ANSWER} tokens together: time",
            f"{seconds[OURS]:.1f} s",
            f"{theirs:.1f} s (llama-server -np {clients})" if "llama_cpp" in points
            else f"missing: {up.missing['llama_cpp']}"[:200],
            seconds[OURS] / theirs, Target(0.3, "x", at_most=True), "", rates[OURS].read),
    ]  # fmt: skip
    measured = {**_measured(points, rates), "hits": hits, "misses": misses}
    return Outcome(rows, measured)
