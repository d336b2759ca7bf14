"""Pulls in processes of their own, killed after a time or at a line of the library's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# Everything is imported once; each pull is a fork, which is ready in a millisecond.
_FORKS = """
import json, os, signal, sys, threading, time
import huggingface_hub, httpx
from huggingface_hub import hf_hub_url
from huggingface_hub.hf_api import HfApi
import tidemill.library
from tidemill.library.catalog import Library
from tidemill.library.fetch import FetchSettings
from tidemill.library.pull import pull
import tidemill.library.sources.hub, tidemill.library.sources.index
HfApi()
FOLDER = os.path.dirname(tidemill.library.__file__)

class Lines:
    # Counts the lines of the library that run, in all threads, and kills the process at one.
    def __init__(self, last):
        self.count, self.last = 0, last
    def __call__(self, frame, event, argument):
        return self.line if frame.f_code.co_filename.startswith(FOLDER) else None
    def line(self, frame, event, argument):
        if event == "line":
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line

def child(source, home, lines, counted):
    try:
        if lines is not None:
            threading.settrace(lines)
            sys.settrace(lines)
        pull(source, Library.open(home), settings=FetchSettings(piece_bytes=2**15, workers=3))
        sys.settrace(None)
        if lines is not None:
            os.write(counted, b"%d" % lines.count)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    source, home, kill_after, kill_at = json.loads(line)
    started = time.monotonic()
    read, counted = os.pipe()
    process = os.fork()
    if process == 0:
        child(source, home, None if kill_at is None else Lines(kill_at), counted)
    os.close(counted)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(process, signal.SIGKILL)  # even if it has ended, it is a zombie until the next line
    _, status = os.waitpid(process, 0)
    lines = int(os.read(read, 20) or 0)
    os.close(read)
    print(json.dumps([status, time.monotonic() - started, lines]), flush=True)
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

    def pull(
        self,
        source: str,
        home: Path,
        *,
        kill_after: float | None = None,
        kill_at: int | None = None,
    ) -> tuple[int, float, int]:
        """One pull: its exit status (0: complete), the seconds that it took, and, of one with
        `kill_at`, the lines of the library's code that ran.

        Args:
            source, home: what is pulled, and the library.
            kill_after: seconds after which it is killed.
            kill_at: number of the line at which it is killed; 0: none, they are counted.
        """
        self._in.write(json.dumps([source, str(home), kill_after, kill_at]) + "\n")
        self._in.flush()
        status, seconds, lines = json.loads(self._out.readline())
        return status, seconds, lines


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
