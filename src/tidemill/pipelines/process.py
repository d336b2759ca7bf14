"""The process of one pipeline: `python -m tidemill.pipelines.process FILE MEMORY_BYTES`.

The server's socket is its standard input. It ends when the socket closes, even while the file's
code does not return to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import socket
import sys
import threading
from pathlib import Path

from tidemill.pipelines.calls import Calls
from tidemill.pipelines.load import CannotLoad, load
from tidemill.pipelines.messages import (
    Credit,
    Ready,
    Start,
    Stop,
    ToServer,
    frame,
    read_frame,
    to_process,
)
from tidemill.pipelines.runs import Runs


def main(path: Path, memory: int) -> int:
    """Serve a pipeline until the server is gone; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Terminals and service managers signal all processes; the server decides when this ends.
        signal.signal(number, signal.SIG_IGN)
    connection = _take_socket()
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    _bound(memory)
    return asyncio.run(_serve(path, connection))


def _take_socket() -> socket.socket:
    """The server's socket; the file's code reads nothing on stdin, and prints on stderr."""
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return connection


def _end_with(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up alone
    poll.poll()
    os._exit(0)


def _bound(memory: int) -> None:
    """Bound the private memory; what exceeds it raises MemoryError."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # rather this process than an engine


async def _serve(path: Path, connection: socket.socket) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=connection)

    def send(message: ToServer) -> None:
        writer.write(frame(message))

    try:
        function = load(path)
    except CannotLoad as error:
        send(Ready(str(error)))
        await writer.drain()
        return 1
    except MemoryError:
        send(Ready("it needs more memory than its bound (memory) when it is loaded"))
        await writer.drain()
        return 1
    calls = Calls(send)
    runs = Runs(path, function, send, calls)
    send(Ready())
    while (body := await read_frame(reader)) is not None:
        message = to_process.decode(body)
        if isinstance(message, Start):
            runs.start(message)
        elif isinstance(message, Stop):
            runs.stop(message)
        elif isinstance(message, Credit):
            runs.credit(message)
        else:
            calls.take(message)
    return 0


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads of the file's code
