"""A Tidemill server of a folder, for as long as a measurement needs it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO


def _address(process: subprocess.Popen, log: IO[bytes], deadline: float) -> str:
    """The address the server prints when it listens."""
    while True:
        log.seek(0)
        text = log.read().decode(errors="replace")
        if found := re.search(r"serving .* on (http://\S+)", text):
            return found[1]
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{text}")
        time.sleep(0.1)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def served(folder: Path, seconds: float = 120) -> Iterator[str]:
    """Serve a Hugging Face folder in float32; gives the base URL with ``/v1``.

    Raises:
        RuntimeError: the server did not start within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    command = [sys.executable, "-m", "tidemill", "serve", str(folder), "--dtype", "float32",
               "--port", "0", "--log-level", "warning"]  # fmt: skip
    with TemporaryFile() as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            url = _address(process, log, deadline)
            while not _ready(url):
                if time.monotonic() > deadline:
                    raise RuntimeError("the server's engine did not become ready")
                time.sleep(0.1)
            yield f"{url}/v1"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
