"""Explanations against an independent clock: under load, the parts of every request must sum to
what its client measured, within 2 ms or 2 %.

`python -m load.clock [--requests 200] [--concurrency 8] [--threads 1]`; the difference that is left
is what the operating system takes to wake up both ends, so the machine should have nothing else to
do, and a core more than the model has threads. How long the server's event loop waited for a
processor meanwhile is printed beside it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from helpers.real_server import RealServer

MILLISECONDS, PART = 0.002, 0.02


class Compared(NamedTuple):
    """One request.

    Attributes:
        client, told: its client's seconds, and those of its explanation.
    """

    client: float
    told: float

    @property
    def close(self) -> bool:
        """The two agree."""
        return abs(self.client - self.told) <= max(MILLISECONDS, PART * self.client)


def _body(number: int) -> bytes:
    rng = random.Random(number)
    words = "The quick brown fox jumps. " * rng.randint(1, 60)
    body = {"prompt": f"{number} {words}", "max_tokens": rng.randint(10, 120), "ignore_eos": True}
    return json.dumps({**body, "stream": number % 2 == 1}).encode()


def compare(url: str, requests: int, concurrency: int) -> list[Compared]:
    """Send requests to a server, and ask it afterwards where their time went."""
    parts = urlsplit(url)
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(requests):
        todo.put(number)
    took: dict[int, float] = {}

    def work() -> None:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        while True:
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            if connection.sock is None:
                connection.connect()
            head = {"content-type": "application/json", "x-request-id": f"clock-{number}"}
            body = _body(number)
            begun = time.monotonic()
            connection.request("POST", "/v1/completions", body, head)
            answer = connection.getresponse()
            answer.read()
            took[number] = time.monotonic() - begun
            assert answer.status == 200

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    found = []
    for number, seconds in took.items():
        connection.request("GET", f"/admin/requests/clock-{number}")
        document: dict[str, Any] = json.loads(connection.getresponse().read())
        told = sum(phase["seconds"] for phase in document["phases"])
        assert abs(told - document["total_seconds"]) < 1e-5
        found.append(Compared(seconds, told))
    return found


def waited_for_a_processor(pid: int) -> float:
    """Seconds that a process's main thread was ready and did not run; 0 where that is not told."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def main() -> int:
    """Compare, and print what was found; 1 where some do not agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--threads", default="auto", help="of the model")
    given = parser.parse_args()
    with RealServer("--database", "none", "--threads", given.threads) as server:
        pid, begun = server.process.pid, time.monotonic()
        waited = waited_for_a_processor(pid)
        found = compare(server.url, given.requests, given.concurrency)
        waited = waited_for_a_processor(pid) - waited
        seconds = time.monotonic() - begun
    apart = [1e3 * (one.client - one.told) for one in found]
    close = sum(one.close for one in found)
    print(f"{close} of {len(found)} requests agree within 2 ms or 2 %")
    print(f"client's time less the parts: median {statistics.median(apart):.2f} ms, "
          f"from {min(apart):.2f} to {max(apart):.2f} ms")  # fmt: skip
    print(f"the server's event loop waited {waited:.2f} s of {seconds:.2f} s for a processor")
    return 0 if close == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
