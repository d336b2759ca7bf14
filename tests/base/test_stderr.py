"""Writing to a log that nobody reads, or that cannot be written."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.base.stderr import GuardedStream, LineWriter

LINES = 40_000
LIMIT = 2**18


END = "the last"


def read_in_background(read: Callable[[int], bytes]) -> Callable[[], list[str]]:
    """Read until the last line; returns what waits for that and gives the lines."""
    parts = [b""]

    def work() -> None:
        while not parts[-1].endswith(f"{END}\n".encode()):
            parts.append(read(2**16))

    thread = threading.Thread(target=work)
    thread.start()

    def lines() -> list[str]:
        thread.join(30)
        return b"".join(parts).decode().splitlines()

    return lines


def missing(lines: list[str]) -> int:
    found = [re.fullmatch(r"(\d+) lines of this log are missing: .*", line) for line in lines]
    return sum(int(one[1]) for one in found if one)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_stands_still_holds_nobody_up(kind: str) -> None:
    if kind == "pipe":
        reading, writing = os.pipe()
        read: Callable[[int], bytes] = lambda size: os.read(reading, size)  # noqa: E731
    else:
        ours, theirs = socket.socketpair()
        read, writing = ours.recv, theirs.detach()
    writer = LineWriter(writing, None, limit=LIMIT)
    for i in range(LINES):
        writer.write(f"line {i}\n".encode())  # would wait for ever if it waited
    lines = read_in_background(read)
    writer.finish(30)
    writer.write(f"{END}\n".encode())
    writer.finish(30)
    got = lines()
    kept = [line for line in got if line.startswith("line ")]
    assert kept == [f"line {i}" for i in range(len(kept))], "the first ones, in order"
    assert got[-1] == END and 0 < len(kept) < LINES
    assert len(kept) + missing(got) == LINES


def test_lines_of_several_threads_stay_whole() -> None:
    reading, writing = os.pipe()
    writer = LineWriter(writing, None)
    stream = GuardedStream(writer, writing)
    lines = read_in_background(lambda size: os.read(reading, size))

    def work(name: str) -> None:
        for i in range(500):
            print(name * 40, i, file=stream)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(END, end="", file=stream)
    stream.finish()  # it has no end of its own
    os.write(writing, b"\n")
    got = lines()
    assert got[-1] == END and len(got) == 1501
    assert all(re.fullmatch(r"(a{40}|b{40}|c{40}) \d+", line) for line in got[:-1])


def test_what_cannot_be_written_is_counted_and_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    spare = os.open(tmp_path / "spare", os.O_RDWR | os.O_CREAT)
    writer = LineWriter(full, spare)
    writer.write(b"to the spare\n")
    assert os.pread(spare, 100, 0) == b"to the spare\n"
    alone, write = LineWriter(spare, None), os.write

    def no_space(descriptor: int, data: bytes) -> int:
        return write(full if descriptor == spare else descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", no_space)
        for _ in range(3):
            alone.write(b"nowhere\n")
    alone.write(b"again\n")
    text = os.pread(spare, 1000, 0).decode()
    assert "3 lines of this log are missing: it cannot be written: No space left" in text
    assert text.endswith("again\n")
    os.close(full)
    os.close(spare)


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    before = threading.enumerate()
    reading, writing = os.pipe()
    writer = LineWriter(writing, None)
    os.close(reading)
    for _ in range(3):
        writer.write(b"nowhere\n")
    writer.finish(30)
    nowhere = LineWriter(writing, None)  # one that is made when nobody reads any more
    nowhere.write(b"nowhere\n")
    nowhere.finish(30)
    assert not [t for t in threading.enumerate() if t.name == "tidemill-log" and t not in before]
