"""Three models in the memory of two, on real engines; run by `make many-models`.

- Requests alternate between a chat model, a random Qwen3 shape of some 370 MB and an embedder,
  while engines are killed: every answer must be the one of each model alone, and the engines'
  memory (PSS, sampled) within the budget.
- A switch to a model whose packed weights are cached, against the start of a server of its own.
- The gaps of 40 streams of one model while another loads, against the same without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
from helpers.real_server import RealServer

from tidemill.base.process_memory import process_bytes

ROOT = Path(__file__).parents[2]
MIB = 2**20
LAYERS = 2
CHAT, LARGE, EMBED = "brook", "large", "small"
PROMPTS = ("The river", "Once upon a time", "A boat", "In the morning", "She said")
STREAMS = 40


def write_models(folder: Path) -> dict[str, str]:
    """Sources of the models by name; made where they are not there."""
    large = folder / LARGE
    if not (large / "config.json").exists():
        script = ROOT / "benchmarks" / "make_model.py"
        command = [sys.executable, str(script), "qwen3-0.6b", str(large), "--layers", str(LAYERS)]
        subprocess.run(command, check=True, cwd=ROOT)
    if not (folder / EMBED).exists():
        from oracles.test_encoders import tiny
        from oracles.test_vectors import modules, write

        write(
            folder / EMBED, tiny("BertModel", "deep"), modules=modules("Transformer", "Pooling"),
            **{"1_Pooling__config": {"pooling_mode_mean_tokens": True}},
        )  # fmt: skip
    return {CHAT: CHAT, LARGE: str(large), EMBED: str(folder / EMBED)}


def engines(server: RealServer) -> list[psutil.Process]:
    """The engine processes."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        try:
            if "tidemill.engine.process" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def body_of(number: int) -> tuple[str, str, dict[str, Any]]:
    """Model, route and body of a request; which depends on its number alone."""
    model = (CHAT, LARGE, EMBED)[number % 3]
    prompt = PROMPTS[number // 3 % len(PROMPTS)]
    if model == EMBED:
        return model, "/v1/embeddings", {"model": model, "input": prompt}
    return model, "/v1/completions", {
        "model": model, "prompt": prompt, "max_tokens": 16, "seed": number // 3 % len(PROMPTS),
        "temperature": 0.8, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


async def ask(http: httpx.AsyncClient, number: int) -> Any:
    """What is compared of an answer: the text and the number of tokens, or the vector."""
    _, route, body = body_of(number)
    if not body.get("stream"):
        answer = await http.post(route, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"][0]["embedding"]
    text, tokens, ended = "", 0, False
    async with http.stream("POST", route, json=body) as answer:
        if answer.status_code != 200:
            raise AssertionError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += "".join(choice["text"] for choice in event["choices"])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    assert ended and tokens == 16, (ended, tokens)
    return text


class Sampled:
    """The most memory that the engines of a server had together; use as a context manager."""

    def __init__(self, server: RealServer) -> None:
        self.most = 0
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._ended.wait(0.05):
            sizes = (process_bytes(engine.pid) or 0 for engine in engines(self._server))
            self.most = max(self.most, sum(sizes))

    def __enter__(self) -> Sampled:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def state(server: RealServer) -> dict[str, dict[str, Any]]:
    """The models by name."""
    found = server.http.get("/admin/models").json()["models"]
    return {model["name"]: model for model in found}


def flags(folder: Path, *models: str, memory: int | None = None) -> list[str]:
    """A deployment file of these models, as flags."""
    sources = write_models(folder)
    path = folder / f"{'-'.join(models)}.toml"
    text = "".join(f"[[models]]\nname = {m!r}\nsource = {sources[m]!r}\n" for m in models)
    path.write_text(text)
    size = [] if memory is None else ["--memory", str(memory)]
    return ["--config", str(path), *size]


def alone(folder: Path, count: int) -> tuple[list[Any], dict[str, int], list[float]]:
    """Answers of each model alone, its least memory, and seconds of starts of the large one."""
    answers: dict[int, Any] = {}
    needs: dict[str, int] = {}
    starts = []

    async def all_of(model: str, url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            for number in range(min(count, 3 * len(PROMPTS))):
                if body_of(number)[0] == model:
                    answers[number] = await ask(http, number)

    for model in (CHAT, LARGE, EMBED):
        with RealServer(*flags(folder, model, memory=8 * 2**30)) as server:
            asyncio.run(all_of(model, server.url))
            needs[model] = state(server)[model]["memory"]
    for _ in range(5):
        with RealServer(*flags(folder, LARGE)) as server:
            starts.append(server.seconds)
    return [answers[n % (3 * len(PROMPTS))] for n in range(count)], needs, starts


def alternating(folder: Path, count: int, kills: float) -> None:
    """Requests that alternate while engines are killed every `kills` seconds (0: never).

    A request that sees several engines end is taken for the cause (`engine/suspects.py`): kills are
    further apart than requests take.
    """
    wanted, needs, starts = alone(folder, count)
    budget = sum(needs.values()) - min(needs.values()) // 2
    print("least memory:", {name: f"{size / MIB:.0f} MiB" for name, size in needs.items()})
    order = list(range(count))
    random.Random(7).shuffle(order)
    killed = 0

    async def run(server: RealServer) -> float:
        nonlocal killed
        gate = asyncio.Semaphore(12)

        async def one(http: httpx.AsyncClient, number: int) -> None:
            async with gate:
                found = await ask(http, number)
            assert found == wanted[number], (number, body_of(number)[0], found, wanted[number])

        async def kill() -> None:
            nonlocal killed
            chosen = random.Random(11)
            while kills:
                await asyncio.sleep(kills)
                running = engines(server)
                if running:
                    chosen.choice(running).send_signal(signal.SIGKILL)
                    killed += 1

        killing = asyncio.create_task(kill())
        began = time.monotonic()
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as http:
            await asyncio.gather(*(one(http, number) for number in order))
        killing.cancel()
        return time.monotonic() - began

    with RealServer(*flags(folder, CHAT, LARGE, EMBED, memory=budget)) as server:
        with Sampled(server) as sampled:
            try:
                seconds = asyncio.run(run(server))
            except BaseException:
                print(server.text[-20_000:], file=sys.stderr)
                raise
        loads = server.text.count("is loaded after")
        print(
            f"{count} requests to three models in {seconds:.1f} s, {loads} loads, {killed} engines "
            f"killed: every answer exact; at most {sampled.most / MIB:.0f} MiB of "
            f"{budget / MIB:.0f} MiB"
        )
        assert sampled.most <= budget, "the engines took more than the budget"
        switches = _switches(server)
    own, switch = statistics.median(starts), statistics.median(switches)
    print(
        f"switch to the model of {needs[LARGE] / MIB:.0f} MiB: median {switch:.2f} s, the start of "
        f"a server of its own {own:.2f} s ({switch / own:.2f})"
    )
    assert switch <= 1.2 * own, (switches, starts)


def _switches(server: RealServer, times: int = 7) -> list[float]:
    """Seconds until the large model answers, each time after the others were in its place."""
    found = []
    one_token = {"prompt": "a", "max_tokens": 1}
    for _ in range(times):
        server.complete(model=CHAT, **one_token)
        assert server.http.post("/v1/embeddings", json={"model": EMBED, "input": "a"}).is_success
        server.http.post("/admin/models/unload", json={"model": LARGE})
        began = time.monotonic()
        server.complete(model=LARGE, **one_token)
        found.append(time.monotonic() - began)
    return found


def gaps_while_loading(folder: Path, loads: int = 3) -> None:
    """The gaps between tokens of 40 streams of brook, without and while the large model loads."""

    body = json.dumps(
        {"model": CHAT, "prompt": "The river", "stream": True, "max_tokens": 3000,
         "ignore_eos": True}
    ).encode()  # fmt: skip

    async def stream(url: str, gaps: list[float], ended: asyncio.Event) -> None:
        # Bare sockets, so that the client takes as little of the processors as possible.
        host, port = url.removeprefix("http://").split(":")
        while not ended.is_set():
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            last: float | None = None
            while not ended.is_set():
                line = await reader.readline()
                if line.startswith(b"data: [DONE]"):
                    break
                assert line, "the server closed a stream"
                if line.startswith(b"data: "):
                    now = time.monotonic()
                    if last is not None:
                        gaps.append(now - last)
                    last = now
            writer.close()

    async def measure(server: RealServer, act: Callable[[], Any]) -> list[float]:
        gaps: list[float] = []
        ended = asyncio.Event()
        streams = [asyncio.create_task(stream(server.url, gaps, ended)) for _ in range(STREAMS)]
        await asyncio.sleep(2.0)
        gaps.clear()
        await asyncio.to_thread(act)
        measured = list(gaps)
        ended.set()
        await asyncio.gather(*streams)
        return measured

    with RealServer(*flags(folder, CHAT, LARGE, memory=4 * 2**30)) as server:

        def load_and_unload() -> None:
            for _ in range(loads):
                for path in ("load", "unload"):
                    body = {"model": LARGE}
                    assert server.http.post(f"/admin/models/{path}", json=body).is_success

        load_and_unload()  # its weights are packed
        seconds = 0.0
        quiet, loading = [], []
        for _ in range(3):  # in turns, since a machine has other work, too
            began = time.monotonic()
            loading += asyncio.run(measure(server, load_and_unload))
            taken = time.monotonic() - began - 2.0
            quiet += asyncio.run(measure(server, lambda: time.sleep(taken)))  # noqa: B023
            seconds += taken
    p99 = [statistics.quantiles(gaps, n=100)[98] * 1000 for gaps in (quiet, loading)]
    p50 = [statistics.median(gaps) * 1000 for gaps in (quiet, loading)]
    most = [max(gaps) * 1000 for gaps in (quiet, loading)]
    print(
        f"{STREAMS} streams, gap between tokens without and beside {3 * loads} loads of another "
        f"model ({seconds:.1f} s): median {p50[0]:.1f} and {p50[1]:.1f} ms, p99 {p99[0]:.1f} and "
        f"{p99[1]:.1f} ms ({p99[1] / p99[0]:.2f}), most {most[0]:.0f} and {most[1]:.0f} ms"
    )
    assert p99[1] <= 1.5 * p99[0]


def main() -> None:
    """Everything, or one part of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kills", type=float, default=10.0, help="seconds between kills; 0: none")
    parser.add_argument("--models", type=Path, help="folder that keeps the models")
    parser.add_argument("--only", choices=("alternating", "gaps"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.models or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.only != "gaps":
            alternating(folder, chosen.requests, chosen.kills)
        if chosen.only != "alternating":
            gaps_while_loading(folder)


if __name__ == "__main__":
    main()
