"""`tidemill serve` as its users start it: both processes, real sockets, a real model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any

import httpx
import psutil

START_SECONDS = 60


class RealServer:
    """A running server; use it as a context manager.

    Args:
        flags: of `tidemill serve`.
        environment: variables that differ from this process's.

    Attributes:
        url: base URL without /v1.
        lines: what it printed on stderr so far.
        seconds: from the start of the process to a positive /readyz.
    """

    def __init__(self, *flags: str, environment: dict[str, str] | None = None) -> None:
        started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", "serve", "--port", "0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self._wait_url(started + START_SECONDS)
        self.http = httpx.Client(base_url=self.url, timeout=120)
        while self.http.get("/readyz").status_code != 200:
            assert time.monotonic() < started + START_SECONDS, self.text
            time.sleep(0.02)
        self.seconds = time.monotonic() - started

    @property
    def text(self) -> str:
        """What it printed."""
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def _wait_url(self, deadline: float) -> str:
        while True:
            found = re.search(r"serving .* on (http://\S+)", self.text)
            if found:
                return found[1]
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"the server did not start:\n{self.text}")
            time.sleep(0.02)

    def engine(self) -> psutil.Process:
        """The engine process."""
        [engine] = [
            child
            for child in psutil.Process(self.process.pid).children()
            if "tidemill.engine.process" in child.cmdline()
        ]
        return engine

    def stats(self) -> dict[str, Any]:
        """The engine's figures now."""
        stats: dict[str, Any] = self.http.get("/readyz").json()["stats"]
        return stats

    def complete(self, **body: Any) -> dict[str, Any]:
        """POST /v1/completions; the answer."""
        response = self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def wait(self, timeout: float = 20) -> int:
        """Wait for the end, and for all that it printed; returns the exit code."""
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code

    def stop(self, number: int = signal.SIGTERM, timeout: float = 20) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.wait(timeout)

    def __enter__(self) -> RealServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
