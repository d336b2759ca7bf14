"""Peers: the processes of ranks 1 and up, as rank 0 sees them."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import log_format, log_level
from tidemill.contract.request import exception_of
from tidemill.executor.ranks.channel import SILENCE_SECONDS, Channel, LocalChannel
from tidemill.executor.ranks.messages import Begin, Command, Reply, Step, decode_reply, encode

_CLOSE_SECONDS = 5.0
_LOSS_SECONDS = 10.0


class Peer:
    """Another rank.

    Args:
        name: what errors call it.
        channel: to it.
        process: its process, where it is a child of this one.

    Attributes:
        reply: to the latest command.
        progress: of its backend, as it last said.
    """

    def __init__(
        self, name: str, channel: Channel, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.name, self.channel, self.process = name, channel, process
        self.reply, self.progress = Reply(), 0
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()

    def listen(self) -> str:
        """Take what it says until it says no more; returns why."""
        try:
            while (body := self.channel.receive()) is not None:
                said = decode_reply(body)
                if isinstance(said, Reply):
                    self._replies.put(said)
                else:
                    self.progress = said.progress
            return "is not there any more"
        except TimeoutError:
            return "does not answer"
        finally:
            self._replies.put(None)

    def wait(self) -> Reply:
        """Its next reply. Raises UNAVAILABLE when there will be none."""
        found = self._replies.get()
        if found is None:
            self._replies.put(None)
            raise _lost()
        return found


class Peers:
    """The other ranks of an engine.

    Args:
        found: them, in order.
        on_lost: called once, on another thread, with how a rank ended that was not closed.
    """

    def __init__(self, found: Iterable[Peer], on_lost: Callable[[str], None]) -> None:
        self._peers = tuple(found)
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._closing = False
        self._told = threading.Event()
        for peer in self._peers:
            threading.Thread(
                target=self._watch, args=(peer,), name="tidemill-rank-link", daemon=True
            ).start()

    def _watch(self, peer: Peer) -> None:
        how = peer.listen()
        if peer.process is not None and how != "does not answer":
            code = peer.process.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        with self._lock:
            if self._closing:
                return
            self._closing = True  # the others end with it
        self._on_lost(f"{peer.name} of the model {how}")
        self._told.set()

    def await_loss(self) -> None:
        """Wait until `on_lost` has been called, after a step failed because of another rank: an
        engine that is to end must not answer with that first."""
        self._told.wait(_LOSS_SECONDS)

    @property
    def replies(self) -> list[Reply]:
        """Of each, to the latest command."""
        return [peer.reply for peer in self._peers]

    def progress(self) -> int:
        """What they computed since they began, in a unit of their backends."""
        return sum(peer.progress for peer in self._peers)

    def wait_loaded(self, identity: str) -> None:
        """Wait until all have loaded their parts. Raises what one of them raised, and CONFIG for
        one that would compute other bits than a rank of this identity."""
        self._take_replies()
        for peer in self._peers:
            if peer.reply.identity != identity:
                raise TidemillError(
                    ErrorKind.CONFIG,
                    f"{peer.name} would compute other bits than this process: it has "
                    f"{peer.reply.identity}, this one {identity}; give both the same files and the "
                    "same build, and --isa where processors differ",
                    param="pipeline_peers",
                )

    def submit(self, step: Step) -> None:
        """Have all compute a step."""
        body = encode(step)
        with contextlib.suppress(OSError):  # one that has ended is noticed where it is watched
            for peer in self._peers:
                peer.channel.send(body)

    def call(self, command: Command) -> None:
        """Have all run a command, and wait for it. Raises what one of them raised."""
        body = encode(command)
        try:
            for peer in self._peers:
                peer.channel.send(body)
        except OSError as error:
            raise _lost() from error
        self._take_replies()

    def _take_replies(self) -> None:
        for peer in self._peers:
            peer.reply = peer.wait()
        for peer in self._peers:
            if peer.reply.error is not None:
                raise exception_of(peer.reply.error)

    def close(self) -> None:
        """End all. Idempotent."""
        with self._lock:
            self._closing = True
        self._told.set()
        for peer in self._peers:
            peer.channel.close()
        for peer in self._peers:
            if (process := peer.process) is None:
                continue
            try:
                process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_process(
    begin: Begin, descriptors: Sequence[int], patience: float | None = SILENCE_SECONDS
) -> tuple[LocalChannel, subprocess.Popen[bytes]]:
    """Start a rank on this machine (`process`).

    Args:
        begin: what it loads.
        descriptors: what it exchanges states through: the memory that all share, or the sockets
            from the stage before and to the next one.
        patience: see LocalChannel.

    Raises:
        TidemillError: RESOURCE if the system starts no more processes.
    """
    try:
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = (theirs.fileno(), *descriptors)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "tidemill.executor.ranks.process"),
                    *(",".join(map(str, inherited)), f"{log_format()}:{log_level()}"),
                ],
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},  # numpy's own threads are not used
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
                pass_fds=inherited,
            )
        channel = LocalChannel(ours, patience)
        channel.send(encode(begin))
    except OSError as error:
        raise TidemillError(
            ErrorKind.RESOURCE,
            f"the processes of the model's other parts cannot be started: {error}",
            retryable=True,
        ) from error
    return channel, process


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
