"""Promise 10: a log that cannot be written, or that nobody reads, stops no server."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.xdist_group("promises")

COMMAND = (
    *(sys.executable, "-m", "tidemill", "serve", "--port", "0", "--kv-memory", "32MiB"),
    *("--threads", "1"),
)
STREAM = {"prompt": "The river", "max_tokens": 300, "ignore_eos": True, "stream": True}


@contextmanager
def started(*command: str, words: str, **streams: Any) -> Iterator[tuple[Any, httpx.Client]]:
    """A server whose words are read, up to its address, from one of its streams."""
    process = subprocess.Popen(command, **streams)
    try:
        reading = getattr(process, words).fileno()
        text = b""
        while not (found := re.search(rb"serving .* on (http://\S+) after", text)):
            part = os.read(reading, 1)
            assert part, text
            text += part
        with httpx.Client(base_url=found[1].decode(), timeout=60) as http:
            yield process, http
    finally:
        process.kill()
        process.wait(20)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def whole_stream(http: httpx.Client, during: threading.Event) -> list[str]:
    lines = []
    with http.stream("POST", "/v1/completions", json=STREAM) as response:
        for line in response.iter_lines():
            lines.append(line)
            during.set()
    return lines


def drains(process: Any, http: httpx.Client, number: int) -> None:
    """A stream under way is finished after the signal, and the exit code is 0."""
    got: list[str] = []
    during = threading.Event()
    thread = threading.Thread(target=lambda: got.extend(whole_stream(http, during)))
    thread.start()
    assert during.wait(30)
    process.send_signal(number)
    thread.join(30)
    assert got[-2:] == ["data: [DONE]", ""] and len(got) > 300
    assert json.loads(got[-4].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(20) == 0


def test_promise_10_a_log_that_nobody_reads() -> None:
    command = (*COMMAND, "--log-level", "debug")
    with started(*command, words="stderr", stderr=subprocess.PIPE) as (process, http):
        fcntl.fcntl(process.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(150):  # a line each
            assert http.get("/healthz").status_code == 200
        drains(process, http, signal.SIGTERM)


def test_promise_10_a_log_whose_reader_has_gone() -> None:
    with started(*COMMAND, words="stderr", stderr=subprocess.PIPE) as (process, http):
        process.stderr.close()
        drains(process, http, signal.SIGINT)  # as `serve 2>&1 | tee` gets it with Ctrl-C


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_promise_10_words_that_stderr_does_not_take_go_to_stdout(redirection: str) -> None:
    command = ("sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND)
    with started(*command, words="stdout", stdout=subprocess.PIPE) as (process, http):
        drains(process, http, signal.SIGTERM)
        assert b"stopping" in process.stdout.read()


def test_promise_10_it_starts_without_any_stream() -> None:
    command = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *COMMAND[:3], "serve", "/no/model")
    assert subprocess.run(command, timeout=60, check=False).returncode == 2
