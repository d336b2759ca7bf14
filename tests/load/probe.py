"""Measures a server during an attack: gaps of a stream and the latency of `/healthz`.

The time to a stream's first event (`first`) is measured apart from the gaps between its events
(`stream`): a new stream queues behind the attacker's requests, which are its own client's.

Runs in a process of its own (`python -m load.probe URL`), so that it is not held up by what the
attacker does. For each line on stdin it prints, as a line of JSON, the worst of each since the line
before; it ends with stdin.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

_BODY = {
    "prompt": "The river",
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 400,
    "temperature": 0,
}


class Worst:
    """The worst of each measurement since the latest `take`, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, list[float]] = {}

    def note(self, name: str, seconds: float) -> None:
        """One measurement."""
        with self._lock:
            self._values.setdefault(name, []).append(seconds)

    def take(self) -> dict[str, float]:
        """The worst, and how many there were, of each; they begin anew."""
        with self._lock:
            values, self._values = self._values, {}
        found: dict[str, float] = {}
        for name, seconds in values.items():
            found[name] = round(max(seconds), 4)
            found[f"{name}_count"] = len(seconds)
        return found


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)


def _lines(url: str, worst: Worst) -> Iterator[bytes]:
    connection = _connect(url)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(_BODY), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        answer.read()
        worst.note(f"answered_{answer.status}", 0.0)
        time.sleep(0.05)
        return
    while line := answer.readline():
        yield line
    connection.close()


def _stream(url: str, worst: Worst) -> None:
    while True:
        try:
            last, name = time.monotonic(), "first"
            for line in _lines(url, worst):
                now = time.monotonic()
                if line.startswith(b'data: {"'):
                    worst.note(name, now - last)
                    last, name = now, "stream"
        except OSError:
            worst.note("broken", 0.0)
            time.sleep(0.1)


def _health(url: str, worst: Worst) -> None:
    connection = _connect(url)
    while True:
        began = time.monotonic()
        try:
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            answer.read()
            worst.note("healthz" if answer.status == 200 else "unhealthy", time.monotonic() - began)
        except (OSError, http.client.HTTPException):
            worst.note("broken", time.monotonic() - began)
            connection.close()
        time.sleep(0.005)


def main(url: str) -> None:
    """Measure until stdin ends."""
    worst = Worst()
    for work in (_stream, _health):
        threading.Thread(target=work, args=(url, worst), daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(worst.take()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
