"""What large and hostile requests cost the others' streams and probes; run by `make stalls`.

Beside each attack on one server with the bundled model, another process measures the longest gap
between two events of a stream and the longest answer of `/healthz` (`load.probe`), and the server's
memory is sampled. Prints a table; the bound of 100 ms holds for a machine without other work.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from helpers.real_server import RealServer

MIB = 2**20
SECONDS = 8.0

Attack = Callable[[tuple[str, int]], str]


def _head(path: str, length: int, *more: bytes) -> bytes:
    lines = (
        b"POST %b HTTP/1.1" % path.encode(),
        b"Host: 127.0.0.1",
        b"Content-Type: application/json",
        b"Content-Length: %d" % length,
        *more,
    )
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _open(address: tuple[str, int], seconds: float = 60.0) -> socket.socket:
    return socket.create_connection(address, timeout=seconds)


def _read(connection: socket.socket) -> bytes:
    """All that is answered before the server closes; its beginning and its length."""
    first, size = b"", 0
    with suppress(OSError):
        while part := connection.recv(2**18):
            first, size = (first or part), size + len(part)
    return first[:12] + b" %d bytes" % size


def _post(address: tuple[str, int], path: str, body: bytes | dict[str, Any]) -> str:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with _open(address) as connection:
        with suppress(OSError):
            connection.sendall(_head(path, len(data), b"Connection: close") + data)
        return _read(connection).decode(errors="replace")


def _together(count: int, work: Callable[[int], str]) -> str:
    """The answers of `count` clients at once, in short."""
    found: list[str] = []
    threads = [threading.Thread(target=lambda i=i: found.append(work(i))) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kinds = sorted({answer[9:12] for answer in found})
    return f"{len(found)} answers: {' '.join(kinds)}; {found[-1] if found else ''}"


def big_text(address: tuple[str, int]) -> str:
    """Bodies of 10 MB with one long text."""
    body = b'{"prompt":"' + b"hello world " * (10 * MIB // 12) + b'"}'
    return _together(3, lambda i: _post(address, "/v1/completions", body))


def big_ids(address: tuple[str, int]) -> str:
    """Bodies of 10 MB with two million token ids."""
    body = b'{"prompt":[' + b",".join([b"1234"] * 2_000_000) + b"]}"
    return _together(3, lambda i: _post(address, "/v1/completions", body))


def many_lists(address: tuple[str, int]) -> str:
    """Bodies with 256 prompts of 7,000 token ids."""
    one = b"[" + b",".join([b"17"] * 7000) + b"]"
    body = b'{"prompt":[' + b",".join([one] * 256) + b"]}"
    return _together(3, lambda i: _post(address, "/v1/completions", body))


def many_messages(address: tuple[str, int]) -> str:
    """Bodies of 10 MB with 3,600 messages."""
    one = b'{"role":"user","content":"' + b"abc " * 700 + b'"}'
    body = b'{"messages":[' + b",".join([one] * 3600) + b"]}"
    return _together(3, lambda i: _post(address, "/v1/chat/completions", body))


def logprobs(address: tuple[str, int]) -> str:
    """Three requests of 128 choices with 20 logprobs."""
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        **{"n": 128, "logprobs": True, "top_logprobs": 20},
        **{"max_tokens": 100},
    }
    return _together(3, lambda i: _post(address, "/v1/chat/completions", body))


def streamed_logprobs(address: tuple[str, int]) -> str:
    """The same, streamed."""
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        **{"n": 128, "logprobs": True, "top_logprobs": 20},
        **{"max_tokens": 100, "stream": True},
    }
    return _together(3, lambda i: _post(address, "/v1/chat/completions", body))


def prompt_logprobs(address: tuple[str, int]) -> str:
    """The logprobs of a long prompt, for 128 choices."""
    body = {"prompt": "word " * 1500, "n": 128, "prompt_logprobs": 20, "max_tokens": 2}
    return _post(address, "/v1/completions", body)


def few_prompt_logprobs(address: tuple[str, int]) -> str:
    """The logprobs of a long prompt, for four choices."""
    body = {"prompt": "word " * 1500, "n": 4, "prompt_logprobs": 20, "max_tokens": 2}
    return _post(address, "/v1/completions", body)


def many_choices(address: tuple[str, int]) -> str:
    """256 prompts of 128 choices with two long stop strings: far more than there may be."""
    body = {"prompt": ["a"] * 256, "n": 128, "stop": ["x" * 1000, "y" * 1000]}
    return _post(address, "/v1/completions", body)


def detokenize(address: tuple[str, int]) -> str:
    """Two million ids to detokenize."""
    body = b'{"tokens":[' + b",".join([b"101"] * 2_000_000) + b"]}"
    return _together(2, lambda i: _post(address, "/detokenize", body))


def tokenize(address: tuple[str, int]) -> str:
    """A million characters to tokenize, with the tokens' texts."""
    body = {"prompt": "a b " * (2**18 - 1), "return_token_strs": True}
    return _together(2, lambda i: _post(address, "/tokenize", body))


def leavers(address: tuple[str, int]) -> str:
    """500 clients that read a little and leave at once."""
    body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 200}).encode()
    connections = []
    for _ in range(500):
        connection = _open(address)
        connection.sendall(_head("/v1/completions", len(body)) + body)
        connections.append(connection)
    time.sleep(1.0)
    for connection in connections:
        connection.setblocking(False)
        with suppress(OSError):
            connection.recv(100)
        connection.close()
    return f"{len(connections)} clients"


def trickles(address: tuple[str, int]) -> str:
    """200 uploads in many small parts."""
    body = b'{"prompt":"' + b"a" * 60_000 + b'"}'
    parts = [body[i : i + 60] for i in range(0, len(body), 60)]
    ends = time.monotonic() + SECONDS
    with ExitStack() as stack:
        connections = [stack.enter_context(_open(address)) for _ in range(200)]
        for connection in connections:
            connection.sendall(_head("/v1/completions", len(body)))
        for part in parts:
            for connection in connections:
                with suppress(OSError):
                    connection.sendall(part)
            if time.monotonic() > ends:
                break
    return f"{len(connections)} uploads"


def tiny_chunks(address: tuple[str, int]) -> str:
    """Bodies in chunks of one byte each."""
    body = b'{"prompt":"' + b"a" * 1_000_000 + b'"}'
    data = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = _head("/v1/completions", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")

    def one(index: int) -> str:
        with _open(address) as connection:
            with suppress(OSError):
                connection.sendall(head + data)
            return _read(connection).decode(errors="replace")

    return _together(4, one)


def unfinished(address: tuple[str, int]) -> str:
    """80 bodies of 15 MiB that never end."""
    part = b'{"prompt":"' + b"a" * (15 * MIB)
    refused = 0
    with ExitStack() as stack:
        for _ in range(80):
            connection = stack.enter_context(_open(address, 0.5))
            with suppress(OSError):
                connection.sendall(_head("/v1/completions", len(part) + 1) + part)
                continue
            refused += 1
        time.sleep(1.0)
    return f"{refused} of 80 were not taken"


def floods(address: tuple[str, int]) -> str:
    """1,000 short requests at once."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    with ExitStack() as stack:
        connections = [stack.enter_context(_open(address)) for _ in range(1000)]
        for connection in connections:
            connection.sendall(_head("/v1/completions", len(body)) + body)
        for connection in connections:
            connection.recv(100)
    return "1000 answers"


ATTACKS: tuple[Attack, ...] = (
    *(big_text, big_ids, many_lists, many_messages),
    *(logprobs, streamed_logprobs, few_prompt_logprobs, prompt_logprobs, many_choices),
    *(detokenize, tokenize, leavers, trickles, tiny_chunks, unfinished, floods),
)


class Peak:
    """The most memory that the server's processes held."""

    def __init__(self, server: RealServer) -> None:
        self._api = psutil.Process(server.process.pid)
        self._server = server
        self.bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            with suppress(psutil.Error, ValueError):
                found = self._api.memory_info().rss + self._server.engine().memory_info().rss
                self.bytes = max(self.bytes, found)
            time.sleep(0.02)


@contextmanager
def _probing(url: str) -> Iterator[Callable[[], dict[str, float]]]:
    command = [sys.executable, "-m", "load.probe", url]
    here = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here
    )
    assert process.stdin is not None
    assert process.stdout is not None
    inlet, outlet = process.stdin, process.stdout

    def take() -> dict[str, float]:
        inlet.write("\n")
        inlet.flush()
        found: dict[str, float] = json.loads(outlet.readline())
        return found

    try:
        yield take
    finally:
        inlet.close()
        process.wait(10)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="attacks; all without any")
    parser.add_argument("--strict", action="store_true", help="fail beyond 100 ms")
    options = parser.parse_args(arguments)
    chosen = [a for a in ATTACKS if not options.names or a.__name__ in options.names]
    late = False
    with RealServer() as server, _probing(server.url) as take:
        parts = urlsplit(server.url)
        assert parts.hostname and parts.port
        address = parts.hostname, parts.port
        engine, peak = server.engine().pid, Peak(server)
        time.sleep(2.0)
        take()
        time.sleep(2.0)
        print(f"{'no attack':20} {take()}", flush=True)
        for attack in chosen:
            peak.bytes, began = 0, time.monotonic()
            said = attack(address)
            time.sleep(1.0)
            worst, seconds = take(), time.monotonic() - began
            late |= max(worst.get("stream", 0), worst.get("healthz", 0)) > 0.1
            print(
                f"{attack.__name__:20} stream {worst.get('stream', -1) * 1e3:5.0f} ms, "
                f"/healthz {worst.get('healthz', -1) * 1e3:5.0f} ms, "
                f"{peak.bytes / MIB:5.0f} MiB, {seconds:4.1f} s: {said}; {worst}",
                flush=True,
            )
            if server.engine().pid != engine:
                print("the engine died", flush=True)
                engine = server.engine().pid
    return int(late and options.strict)


if __name__ == "__main__":
    sys.exit(main())
