"""A batch of many lines over brook with kills, and what interactive requests notice of a batch.

`make batches`: prints two tables; exits 1 where a line is missing, twice or wrong.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
from helpers.real_server import RealServer

CHAT = "/v1/chat/completions"


def line(i: int, tokens: int) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": f"What is {i} plus {i % 7}?"}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    return {"custom_id": f"c{i}", "method": "POST", "url": CHAT, "body": body}


def started(database: Path) -> RealServer:
    return RealServer("--database", f"sqlite:///{database}")


def begin(http: httpx.Client, count: int, tokens: int) -> str:
    text = "\n".join(json.dumps(line(i, tokens)) for i in range(count)).encode()
    made = http.post(
        "/v1/files", files={"file": ("in.jsonl", io.BytesIO(text))}, data={"purpose": "batch"}
    ).raise_for_status()
    asked = {"input_file_id": made.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    identity: str = http.post("/v1/batches", json=asked).raise_for_status().json()["id"]
    return identity


def state(http: httpx.Client, identity: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/batches/{identity}").raise_for_status().json()
    return found


def kills(count: int, times: int, tokens: int, seed: int) -> bool:
    """A batch through kills; True if every line has its one right result."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tidemill.db"
        server = started(database)
        try:
            expected = {
                i: server.http.post(CHAT, json=line(i, tokens)["body"]).json()["choices"]
                for i in choose.sample(range(count), 20)
            }
            began = time.monotonic()
            identity = begin(server.http, count, tokens)
            done: list[int] = []
            for number in range(times):
                goal = (number + 1) * count // (times + 2)
                while (now := state(server.http, identity))["request_counts"]["completed"] < goal:
                    assert now["status"] in ("validating", "in_progress"), now
                    time.sleep(0.05)
                time.sleep(choose.uniform(0, 0.3))
                done.append(now["request_counts"]["completed"])
                server.process.kill()
                server.process.wait()
                server = started(database)
                server.http.get("/v1/batches", params={"limit": 1})  # opens the database
            while (now := state(server.http, identity))["status"] != "completed":
                assert now["status"] in ("validating", "in_progress", "finalizing"), now
                time.sleep(0.2)
            seconds = time.monotonic() - began
            content = server.http.get(f"/v1/files/{now['output_file_id']}/content").text
            rows = [json.loads(text) for text in content.splitlines()]
            names = Counter(row["custom_id"] for row in rows)
            right = all(
                rows[i]["response"]["body"]["choices"] == choices for i, choices in expected.items()
            )
            whole = len(rows) == count and set(names.values()) == {1}
            print(
                f"{count} lines, {times} kills -9 of the server (at {done} results): "
                f"{len(rows)} results, {sum(n > 1 for n in names.values())} twice, sampled answers "
                f"{'as' if right else 'NOT as'} without a batch; {seconds:.0f} s, starts included"
            )
            return whole and right
        finally:
            server.process.kill()
            server.process.wait()


def first_tokens(http: httpx.Client, count: int, seed: int) -> list[float]:
    """Milliseconds to the first token of chats that come one by one, at random times."""
    choose = random.Random(seed)
    found = []
    for i in range(count):
        body = {
            "messages": [{"role": "user", "content": f"Tell me about number {seed}-{i}."}],
            "max_tokens": 24,
            "stream": True,
        }
        began = time.perf_counter()
        with http.stream("POST", CHAT, json=body) as stream:
            seen = False
            for text in stream.iter_lines():
                if not seen and '"content"' in text and '"content":""' not in text:
                    found.append(1000 * (time.perf_counter() - began))
                    seen = True
        time.sleep(choose.uniform(0.02, 0.15))
    return found


def beside(rounds: int, count: int) -> None:
    """Times to the first token beside a batch and without one, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        server = started(Path(folder) / "tidemill.db")
        try:
            first_tokens(server.http, 20, 0)
            alone: list[float] = []
            busy: list[float] = []
            for number in range(rounds):
                alone += first_tokens(server.http, count, 2 * number)
                identity = begin(server.http, 4000, 64)
                while not state(server.http, identity)["request_counts"]["completed"]:
                    time.sleep(0.02)
                busy += first_tokens(server.http, count, 2 * number + 1)
                running = state(server.http, identity)
                assert running["status"] == "in_progress", "the batch ended too early"
                server.http.post(f"/v1/batches/{identity}/cancel")
                time.sleep(1.0)
            rows = {"without": alone, "beside a batch": busy}
            for name, times in rows.items():
                p95 = quantiles(times, n=20)[-1]
                print(f"{name}: p50 {median(times):.1f} ms, p95 {p95:.1f} ms of {len(times)}")
            ratio = quantiles(busy, n=20)[-1] / quantiles(alone, n=20)[-1]
            print(f"p95 beside a batch: {ratio:.2f} times that without")
        finally:
            server.process.terminate()
            server.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60)
    given = parser.parse_args()
    good = kills(given.lines, given.kills, given.tokens, given.seed)
    if given.rounds:
        beside(given.rounds, given.requests)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
