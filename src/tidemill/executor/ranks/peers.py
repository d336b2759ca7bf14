"""Peers: the processes of ranks 1 and up, as rank 0 sees them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import log_format, log_level
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import exception_of
from tidemill.executor.ranks.messages import Command, Reply, Step, decode_reply, receive, send

_CLOSE_SECONDS = 5.0


class Peers:
    """Starts the other ranks of an engine.

    Args:
        config: the engine's configuration.
        memory: descriptor of the memory that the ranks share.
        on_lost: called once, on another thread, with how a rank ended that was not closed.

    Raises:
        TidemillError: RESOURCE if the system starts no more processes.
    """

    def __init__(self, config: EngineConfig, memory: int, on_lost: Callable[[str], None]) -> None:
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._closing = False
        self.replies: list[Reply] = []  # of each, to the latest command
        self._links: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        ranks = config.tensor_parallel
        try:
            for rank in range(1, ranks):
                self._start(rank, ranks, memory, msgspec.json.encode(config))
        except OSError as error:
            self.close()
            raise TidemillError(
                ErrorKind.RESOURCE,
                f"the processes of the model's other parts cannot be started: {error}",
                retryable=True,
            ) from error

    def _start(self, rank: int, ranks: int, memory: int, config: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidemill.executor.ranks.process"]
                + [str(n) for n in (rank, ranks, theirs.fileno(), memory)]
                + [f"{log_format()}:{log_level()}"],
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},  # numpy's own threads are not used
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
                pass_fds=(theirs.fileno(), memory),
            )
        self._processes.append(process)
        self._links.append(ours)
        ours.sendall(struct.pack("<I", len(config)) + config)
        threading.Thread(
            target=self._watch, args=(rank, process), name=f"tidemill-rank-{rank}", daemon=True
        ).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._lock:
            if self._closing:
                return
            self._closing = True  # the others end with it
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._on_lost(f"rank {rank} of the model {how}")

    def wait_loaded(self) -> None:
        """Wait until all have loaded their parts. Raises what one of them raised."""
        self._take_replies()

    def submit(self, step: Step) -> None:
        """Have all compute a step."""
        with contextlib.suppress(OSError):  # one that has ended is noticed where it is watched
            for link in self._links:
                send(link, step)

    def call(self, command: Command) -> None:
        """Have all run a command, and wait for it. Raises what one of them raised."""
        try:
            for link in self._links:
                send(link, command)
        except OSError as error:
            raise _lost() from error
        self._take_replies()

    def _take_replies(self) -> None:
        replies = []
        for link in self._links:
            body = receive(link)
            if body is None:
                raise _lost()
            replies.append(decode_reply(body))
        for reply in replies:
            if reply.error is not None:
                raise exception_of(reply.error)
        self.replies = replies

    def close(self) -> None:
        """End all. Idempotent."""
        with self._lock:
            self._closing = True
        for link in self._links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for process in self._processes:
            try:
                process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for link in self._links:
            link.close()


def _lost() -> TidemillError:
    return TidemillError(
        ErrorKind.UNAVAILABLE, "a process that computes a part of the model has ended"
    )


def _has_descriptor(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
