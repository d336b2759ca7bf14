"""Is "fits" ever wrong at the edge? Run by `make plan-edges`, as root with memory cgroups (v1).

Each case is planned with a memory that just suffices; a server then gets as much by a cgroup's
limit, and so many requests as the plan had fill its cache. "Fits" is wrong if the kernel kills a
process or a request fails. Pages of libraries, which other processes have read before, are charged
to nobody here: the limit is lower by as much. With --write, the table of docs/planning.md.

    PYTHONPATH=tests .venv/bin/python -m load.plan_edges [--folder FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from helpers.real_server import RealServer

from load.plan_memory import (
    CASES,
    DOC,
    MIB,
    Case,
    file_bytes,
    fill,
    model_of,
    pids_of,
    tidemill_says,
)
from tidemill.worker.sizing import RESERVE_BYTES

BEGIN, END = "<!-- edges: begin -->", "<!-- edges: end -->"
GROUPS = Path("/sys/fs/cgroup/memory")
NAMES = (
    "brook", "llama, bf16", "llama, q8_0", "llama, q4_0, int8 cache", "llama, GQA, bf16",
    "llama, GQA, int8", "qwen2, windows", "mistral, window", "gemma2", "gemma3, q8_0", "mixtral",
    "olmoe", "qwen3-moe", "deepseek-v2, latents", "mamba2", "qwen3-next", "gpt2", "phi3, fused",
    "qwen3-0.6b, q8_0, int8 cache", "qwen3-0.6b, q4_0, int4 cache",
)  # fmt: skip
# A cache for which memory is tight: more than what an engine leaves free where steps are small.
TIGHT_BYTES = 560 * MIB
_MOST_TOKENS = 16384  # that a case computes


@contextlib.contextmanager
def limited(nbytes: int) -> Iterator[Path]:
    """A memory cgroup; processes started within are in it."""
    group = GROUPS / f"tidemill-edge-{os.getpid()}"
    group.mkdir()
    home = GROUPS / next(
        line.split(":")[2].strip().lstrip("/")
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if ":memory:" in line
    )
    try:
        (group / "memory.limit_in_bytes").write_text(str(nbytes))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def killed(group: Path) -> int:
    """How many processes the kernel has ended for want of memory."""
    told = (group / "memory.oom_control").read_text().split()
    return int(told[told.index("oom_kill") + 1])


def library_bytes() -> int:
    """Resident pages of files that are no weights, of all processes of a server."""
    with RealServer("brook", "--served-name", "m", "--kv-memory", "4MiB") as server:
        httpx.post(f"{server.url}/v1/completions", json={"model": "m", "prompt": "a"})
        return file_bytes(pids_of(server), but=".safetensors")


def edges(case: Case, folder: Path) -> Iterator[Case]:
    """Three contexts: half and whole, and one for which memory is tight, or as long as may be."""
    for share in (0.5, 1.0):
        yield replace(case, context=max(128, int(share * case.context) // 32 * 32))
    said = tidemill_says("plan", model_of(case, folder), "--json", "--context", "512", *case.flags)
    planned = json.loads(said)
    tokens = min(_MOST_TOKENS, TIGHT_BYTES // max(1, planned["kv_bytes_per_token"]))
    longest = 4096 if case.shape in (None, "gpt2") else 16384
    yield replace(case, context=min(longest, max(128, tokens // case.streams // 32 * 32)))


def edge(case: Case, folder: Path, libraries: int) -> tuple[int, int, str]:
    """The memory planned, the most that was charged, and what went wrong."""
    model = model_of(case, folder)
    shared = ("--max-num-seqs", str(case.streams), *case.flags)
    asked = ("--context", str(case.context), "--concurrency", str(case.streams))
    first = json.loads(tidemill_says("plan", model, "--json", *asked, *shared))
    cache = max(MIB, (2 if first["state_bytes"] else 1) * first["cache_bytes"])
    limits = ("--max-model-len", str(case.context), "--kv-memory", str(cache))

    def plan(*more: str) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(
            tidemill_says("plan", model, "--json", *limits, *shared, *more)
        )
        return said

    planned = plan()
    # An engine asks for this much beside weights, however little its steps take.
    asks = planned["weights_bytes"] + RESERVE_BYTES + planned["overhead"]["server_process"]
    memory = max(planned["total_bytes"], asks)
    for nbytes, fits in ((memory, True), (memory - MIB, False)):
        if plan("--memory", str(nbytes))["fits"] is not fits:
            return memory, 0, f"the plan says fits={not fits} with {nbytes} bytes"
    with limited(memory - libraries) as group:
        wrong = ""
        try:
            flags = (*limits, "--packed-cache", "off", *shared)
            with RealServer(model, "--served-name", "m", *flags) as server:
                while "weights loaded" not in server.text:
                    time.sleep(0.1)
                fill(server, case, planned, times=1)
        except (AssertionError, httpx.HTTPError, OSError) as error:
            wrong = str(error)[:200] or type(error).__name__
        most = int((group / "memory.max_usage_in_bytes").read_text())
        if count := killed(group):
            wrong = f"{count} processes were killed; {wrong}"
    return memory, most, wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=NAMES, action="append", help="all by default")
    parser.add_argument("--folder", type=Path, help="keep the models here")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    libraries = library_bytes()
    print(f"libraries: {libraries / MIB:.0f} MiB", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidemill-plan-edges-") as made:
        folder = args.folder or Path(made)
        total, misses = 0, list[str]()
        for name in args.case or NAMES:
            for case in edges(CASES[name], folder):
                memory, most, wrong = edge(case, folder, libraries)
                total += 1
                line = f"{name}, {case.streams} x {case.context}: {memory / MIB:.0f} MiB planned"
                print(f"{line}, {most / MIB:.0f} charged{wrong and ': ' + wrong}", flush=True)
                if wrong:
                    misses.append(f"- {line}: {wrong}")
    said = [f'{total} edges: "fits" was wrong in {len(misses)}.', *misses]
    print("\n".join(said))
    if args.write:
        text = DOC.read_text()
        before, _, rest = text.partition(BEGIN)
        DOC.write_text("\n".join((f"{before}{BEGIN}", *said, END)) + rest.partition(END)[2])
    sys.exit(bool(misses))


if __name__ == "__main__":
    main()
