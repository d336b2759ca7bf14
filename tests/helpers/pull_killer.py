"""Pulls in processes of their own, killed at points drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# Everything is imported once; each pull is a fork, which is ready in a millisecond.
_FORKS = """
import json, os, signal, sys, time
import huggingface_hub, httpx
from huggingface_hub import hf_hub_url
from huggingface_hub.hf_api import HfApi
from tidemill.library import http
from tidemill.library.catalog import Library
from tidemill.library.fetch import FetchSettings
from tidemill.library.pull import pull
import tidemill.library.sources.hub, tidemill.library.sources.index
HfApi()
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    source, home, kill_after = json.loads(line)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            pull(source, Library.open(home), settings=FetchSettings(piece_bytes=2**15, workers=3))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # even if it has ended, it is a zombie until the next line
    _, status = os.waitpid(child, 0)
    print(json.dumps([status, time.monotonic() - started]), flush=True)
"""


class Killer:
    """Starts pulls, and kills those that it is told to.

    Args:
        process: runs `_FORKS`.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._in: IO[str] = process.stdin
        self._out: IO[str] = process.stdout

    def pull(self, source: str, home: Path, kill_after: float | None = None) -> tuple[int, float]:
        """One pull; its exit status (0: complete) and the seconds that it took."""
        self._in.write(json.dumps([source, str(home), kill_after]) + "\n")
        self._in.flush()
        status, seconds = json.loads(self._out.readline())
        return status, seconds


@contextmanager
def killer(endpoint: str, cache: Path, token: str) -> Iterator[Killer]:
    """A process that forks pulls from a hub."""
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_TOKEN": token,
        "PIP_INDEX_URL": f"{endpoint}/simple",
        "PIP_CONFIG_FILE": os.devnull,
    }
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == "ready"
            yield Killer(process)
        finally:
            process.kill()


def kill_points(seed: int, count: int, whole: float) -> list[float]:
    """Times in seconds, spread over a pull that takes `whole`, the end included."""
    draw = random.Random(seed)
    return [whole * (n + draw.random()) / count for n in range(count)]
