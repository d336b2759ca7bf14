"""Hundreds of adapters of brook in the memory of 24 while engines are killed; `make adapters`.

- Requests draw adapters by Zipf's law, LoRA, prompt adapters and the base, and engines are killed:
  every answer must be the one that its adapter gives alone, on a server with memory for all.
- What an adapter that is not in memory costs its request, against reading its file.
- The time to the first token with one that is, and the gaps between tokens of others' streams,
  while adapters are loaded one after another, against the same without.

Prints a table; exits 1 where an answer is wrong. Times are to be read with the machine in mind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil
from helpers.real_server import RealServer
from safetensors.numpy import load_file, save_file

from tidemill.loading.locate import bundled_models
from tidemill.models.small_floats import rounded_bf16

BROOK = bundled_models()["brook"]
TENSORS = "adapter_model.safetensors"
IN_MEMORY = 24
TOKENS = 16
PROMPTS = ("The river", "What is the capital of Spain?", "Once upon a time")
STREAMS = 8
MOST_KILLS = 25


def write_adapters(folder: Path, count: int) -> list[str]:
    """Adapters with brook's matrices or vectors and a change of their own; every tenth is a prompt
    adapter. Their names."""
    names = []
    for i in range(count):
        source = BROOK / ("soft-ahoy" if i % 10 == 9 else ("lora-verse", "lora-ripple")[i % 2])
        target = folder / f"a{i:03}"
        shutil.copytree(source, target)
        rng = np.random.default_rng(i)
        tensors = {
            name: _changed(values, rng) for name, values in load_bf16(source / TENSORS).items()
        }
        save_file(tensors, target / TENSORS)
        names.append(target.name)
    return names


def load_bf16(file: Path) -> dict[str, np.ndarray]:
    """Tensors of a file as float32, which numpy's reader does not give of bfloat16."""
    import torch
    from safetensors.torch import load_file as load

    return {name: tensor.to(torch.float32).numpy() for name, tensor in load(file).items()}


def _changed(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(values.shape) * values.std() * 0.4
    return rounded_bf16((values + noise).astype(np.float32))


def file_seconds(folder: Path, name: str) -> float:
    """How long reading an adapter's tensors takes."""
    begun = time.perf_counter()
    load_file(folder / name / TENSORS)
    return time.perf_counter() - begun


@dataclass
class Answer:
    """A streamed answer: its text, seconds to the first token, and gaps between the others."""

    text: str = ""
    first: float = 0.0
    gaps: list[float] = field(default_factory=list)


async def ask(http: httpx.AsyncClient, name: str, prompt: str, tokens: int = TOKENS) -> Answer:
    """A completion. Raises AssertionError for an error."""
    body: dict[str, Any] = {
        "model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    found, last = Answer(), time.perf_counter()
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise AssertionError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            now = time.perf_counter()
            if found.first:
                found.gaps.append(now - last)
            else:
                found.first = now - last
            last = now
            found.text += "".join(choice["text"] for choice in event["choices"])
    return found


def client(server: RealServer) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=64)
    return httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits)


async def alone(server: RealServer, names: list[str]) -> dict[tuple[str, str], str]:
    """The answers of each adapter and the base, one after another."""
    async with client(server) as http:
        return {
            (name, prompt): (await ask(http, name, prompt)).text
            for name in ("brook", *names)
            for prompt in PROMPTS
        }


class Killer:
    """Kills the server's engine every so many seconds, if it has answered since it was killed last,
    and at most `MOST_KILLS` times: a server gives up engines that die before they do anything, or
    more than 30 times in ten minutes (`engine/restarts.py`). Use as a context manager."""

    def __init__(self, server: RealServer, every: float) -> None:
        self.kills = 0
        self._server, self._every = server, every
        self._answers = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def answered(self) -> None:
        """An answer was right, or at least whole."""
        self._answers += 1

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            if self._answers < 64 or self.kills == MOST_KILLS:
                continue
            try:
                self._server.engine().send_signal(signal.SIGKILL)
                self.kills += 1
                self._answers = 0
            except (ValueError, psutil.Error):
                continue  # it is being replaced

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


async def zipf(
    server: RealServer,
    names: list[str],
    right: dict[tuple[str, str], str],
    requests: int,
    killer: Killer,
) -> tuple[Counter[str], list[str]]:
    """Requests of 16 clients. Returns how often each adapter was asked, and what was wrong."""
    rng = random.Random(1)
    order = ["brook", *names]
    rng.shuffle(order)
    weights = [1 / (rank + 1) for rank in range(len(order))]
    todo = [(name, rng.choice(PROMPTS)) for name in rng.choices(order, weights, k=requests)]
    asked, wrong = Counter(name for name, _ in todo), list[str]()
    async with client(server) as http:

        async def work() -> None:
            while todo:
                name, prompt = todo.pop()
                try:
                    text = (await ask(http, name, prompt)).text
                except (AssertionError, httpx.HTTPError) as error:
                    wrong.append(f"{name}: {error!r}"[:300])
                    continue
                killer.answered()
                if text != right[name, prompt]:
                    whose = [n for (n, p), t in right.items() if (p, t) == (prompt, text)]
                    wrong.append(f"{name}: the answer of {whose or 'none'}")

        await asyncio.gather(*(work() for _ in range(16)))
    return asked, wrong


async def misses(server: RealServer, folder: Path, names: list[str]) -> dict[str, list[float]]:
    """Seconds to the first token of adapters that are not in memory, and again when they are."""
    found: dict[str, list[float]] = {"miss": [], "hit": [], "file": []}
    async with client(server) as http:
        for name in names:  # verified now, and displaced by the next ones
            await ask(http, name, PROMPTS[0], 2)
        for name in names:
            found["file"].append(file_seconds(folder, name))
            found["miss"].append((await ask(http, name, PROMPTS[0], 2)).first)
            found["hit"].append((await ask(http, name, PROMPTS[0], 2)).first)
    return found


async def beside(
    server: RealServer, names: list[str], seconds: float, *, loading: bool
) -> tuple[list[float], list[float]]:
    """First tokens of an adapter in memory, and gaps of the base's streams, while others are loaded
    or not."""
    firsts, gaps = list[float](), list[float]()
    end = time.perf_counter() + seconds
    async with client(server) as http:
        hot = names[0]
        await ask(http, hot, PROMPTS[0], 2)

        async def stream() -> None:
            while time.perf_counter() < end:
                gaps.extend((await ask(http, "brook", PROMPTS[2], 200)).gaps)

        async def first() -> None:
            while time.perf_counter() < end:
                firsts.append((await ask(http, hot, PROMPTS[1], 2)).first)

        async def load() -> None:
            # The same number of streams beside, whether their adapters are in memory or not.
            which = names[1:] if loading else names[1:2]
            while time.perf_counter() < end:
                for name in which:
                    await ask(http, name, PROMPTS[0], 2)
                    if time.perf_counter() > end:
                        break

        await asyncio.gather(*(stream() for _ in range(STREAMS)), first(), load())
    return firsts, gaps


def share(values: list[float], part: float) -> float:
    """A quantile, in milliseconds."""
    return 1000 * sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="adapters")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = write_adapters(folder, options.count)
        watched = f"--adapter-folder={folder}"
        with RealServer("brook", watched, "--adapter-memory=8GiB") as server:
            right = asyncio.run(alone(server, names))
        print(f"{len(names)} adapters, {len(set(right.values()))} different answers", flush=True)
        size = (folder / names[0] / TENSORS).stat().st_size  # bfloat16 in memory, too
        budget = f"--adapter-memory={IN_MEMORY * size}"
        with RealServer("brook", watched, budget) as server:
            with Killer(server, options.kill_every) as killer:
                begun = time.monotonic()
                asked, wrong = asyncio.run(zipf(server, names, right, options.requests, killer))
            print(
                f"{asked.total()} requests of {len(asked)} adapters in "
                f"{time.monotonic() - begun:.0f} s, {killer.kills} kills: {len(wrong)} wrong",
                flush=True,
            )
            for line in wrong[:10]:
                print(f"  {line}")
        with RealServer("brook", watched, budget) as server:
            found = asyncio.run(misses(server, folder, names[:100]))
            costs = [m - h for m, h in zip(found["miss"], found["hit"], strict=True)]
            print(
                f"a miss: {1000 * median(costs):.1f} ms more than a hit, the worst of "
                f"{len(costs)} {1000 * max(costs):.1f}; its file is read in "
                f"{1000 * median(found['file']):.1f}"
            )
            rows = {}
            for what, loading in (("without loads", False), ("beside loads", True)):
                rows[what] = asyncio.run(
                    beside(server, names[:60], options.seconds, loading=loading)
                )
            print("ms: first token of a hit, median and p99; gaps of others, mean and p99")
            for what, (firsts, gaps) in rows.items():
                mean = 1000 * sum(gaps) / len(gaps)
                numbers = (share(firsts, 0.5), share(firsts, 0.99), mean, share(gaps, 0.99))
                print(f"{what:20}" + "".join(f"{number:14.1f}" for number in numbers))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
