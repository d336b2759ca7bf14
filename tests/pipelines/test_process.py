"""A pipeline's process by its protocol."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tidemill.pipelines.messages import (
    WINDOW_BYTES,
    Credit,
    Ended,
    Ready,
    Start,
    Stop,
    Text,
    ToServer,
    frame,
    to_server,
)


class Peer:
    """The server's side of a process, without a server."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.connection = connection
        self.process = process

    def send(self, message: Start | Stop | Credit) -> None:
        self.connection.sendall(frame(message))

    def next(self) -> ToServer:
        size = int.from_bytes(self._exactly(4), "little")
        return to_server.decode(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.connection.recv(size - len(data))
            assert piece
            data += piece
        return data


@contextmanager
def _process(file: Path, source: str) -> Iterator[Peer]:
    file.write_text(source)
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    command = (sys.executable, "-P", "-m", "tidemill.pipelines.process", str(file), str(2**28))
    with subprocess.Popen(command, stdin=theirs.fileno(), stderr=subprocess.PIPE) as process:
        theirs.close()
        try:
            with ours:
                peer = Peer(ours, process)
                assert peer.next() == Ready()
                yield peer
            process.wait(20)
        finally:
            process.kill()


def _start(run: int = 1) -> Start:
    plain = {"messages": [], "sampling": {}, "options": {}, "names": [], "default": ""}
    rest = {"request_id": "r", "pipeline": "p", "stream": True, "seconds": 9.0}
    return msgspec.convert({"type": "start", "run": run, **plain, **rest}, Start)


def test_it_ends_with_its_server_even_while_code_does_not_return(tmp_path: Path) -> None:
    source = "import time\nasync def answer(request, models):\n    yield 'x'\n    time.sleep(600)\n"
    with _process(tmp_path / "p.py", source) as peer:
        peer.send(_start())
        assert peer.next() == Text(1, "x")
    assert peer.process.returncode == 0


def test_text_that_nobody_takes_holds_a_run_up_and_no_other(tmp_path: Path) -> None:
    source = "async def answer(request, models):\n    while True:\n        yield 'x' * 16384\n"
    with _process(tmp_path / "p.py", source) as peer:
        peer.send(_start(1))
        taken = 0
        while taken < WINDOW_BYTES:
            message = peer.next()
            assert isinstance(message, Text) and message.run == 1
            taken += len(message.text)
        peer.send(_start(2))  # the first one waits, or its texts would come before
        assert peer.next().run == 2  # type: ignore[union-attr]
        peer.send(Stop(2))
        while not isinstance(message := peer.next(), Ended):
            assert message.run == 2  # type: ignore[union-attr]
        peer.send(Credit(1, 1))
        assert peer.next() == Text(1, "x" * 16384)


def test_what_it_prints_goes_to_stderr_and_modules_beside_it_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    (tmp_path / "json.py").write_text("raise SystemExit\n")  # the standard library comes first
    source = (
        "import json, sys, beside\nprint('hello')\n"
        "async def answer(request, models):\n    return beside.WORD + sys.stdin.read()\n"
    )
    with _process(tmp_path / "p.py", source) as peer:
        peer.send(_start())
        assert peer.next() == Text(1, "found")
        assert peer.next() == Ended(1)
        assert peer.process.stderr is not None
        assert peer.process.stderr.readline() == b"hello\n"
