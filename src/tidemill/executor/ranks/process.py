"""A rank's process: `python -m tidemill.executor.ranks.process SOCKET,STATES LOG`.

It loads its part of the model and runs the commands of rank 0, whose end of the socket it outlives
by nothing. SOCKET and STATES are inherited descriptors (STATES: `peers.start_process`), LOG is
FORM:LEVEL of its log; what to load is the socket's first message.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tidemill.backends.base import Backend, BackendOptions, Shard, Stage, StepHandle
from tidemill.base.build import build_id
from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError
from tidemill.base.heap import use_few_arenas
from tidemill.base.log import get_logger, set_up_logging
from tidemill.contract.request import RequestError
from tidemill.executor.ranks.channel import BEAT_SECONDS, Channel, LocalChannel
from tidemill.executor.ranks.cpus import pin_rank, threads_of
from tidemill.executor.ranks.messages import (
    CALLS,
    Allocate,
    Beat,
    Begin,
    Command,
    Do,
    LimitCache,
    MoveBlocks,
    Reply,
    Step,
    array_of,
    decode_begin,
    decode_command,
    encode,
    inputs_of,
)

_log = get_logger(__name__)

MAX_OUTSTANDING = 2


def part_of(begin: Begin, descriptors: Sequence[int], options: BackendOptions) -> BackendOptions:
    """The options of a rank's backend."""
    rank, ranks = begin.rank, begin.ranks
    if not begin.alone:
        options = replace(options, threads=threads_of(options.threads, rank, ranks))
    if begin.layers is None:
        return replace(options, shard=Shard(rank, ranks, *descriptors))
    return replace(options, stage=Stage(rank, ranks, range(*begin.layers), *descriptors))


def identity_of(digest: bytes, backend: Backend) -> str:
    """What the bits depend on that a rank computes."""
    options = backend.options
    types = f"{options.dtype}/{options.quantize}/{options.kv_dtype}"
    return f"weights {digest.hex()}, {backend.memory().isa}, {types}, build {build_id()}"


def load_part(begin: Begin, descriptors: Sequence[int]) -> tuple[Backend, str]:
    """Load this rank's part of a configuration's model; returns when all weights are packed.

    Returns:
        The backend, and its identity.
    """
    from tidemill.worker.opening import open_files
    from tidemill.worker.packed import kept_weights

    opened = open_files(begin.config)
    files, tensors = opened.files, opened.tensors
    options = part_of(begin, descriptors, opened.options)
    digest = files.digest()
    packed = kept_weights(
        begin.config, files, digest, options.threads, tensors.error_note, lambda line: None
    )
    backend: Backend = opened.module.load(files.spec, tensors, options, packed)
    ended: queue.SimpleQueue[TidemillError | None] = queue.SimpleQueue()
    on_loaded: LoadCallback = ended.put
    backend.when_loaded(on_loaded)
    if (error := ended.get()) is not None:
        raise error
    tensors.forget()
    for file in files.files:
        file.release_pages()
    return backend, identity_of(digest, backend)


class RankServer:
    """Runs commands on a backend, in the order in which they come."""

    def __init__(self, backend: Backend, channel: Channel) -> None:
        self._backend, self._channel = backend, channel
        self._steps: deque[StepHandle] = deque()

    def run(self, command: Command) -> None:
        """Run one; answers where rank 0 waits for that."""
        if isinstance(command, Step):
            self._settle(MAX_OUTSTANDING - 1)
            self._steps.append(self._backend.submit(inputs_of(command)))
            return
        self._settle(0)
        try:
            self._change(command)
        except TidemillError as error:
            self._channel.send(encode(Reply(told(error), memory_of(self._backend))))
        else:
            self._channel.send(encode(Reply(None, memory_of(self._backend))))

    def _settle(self, most: int) -> None:
        """Wait until at most so many steps are outstanding."""
        while len(self._steps) > most:
            self._steps.popleft().result()

    def _change(self, command: Command) -> None:
        backend = self._backend
        if isinstance(command, Allocate):
            backend.allocate_cache(
                command.num_blocks,
                command.kv_dtype,
                command.states,
                unchecked=command.unchecked,
            )
        elif isinstance(command, LimitCache):
            backend.limit_cache(command.blocks)
        elif isinstance(command, MoveBlocks):
            blocks = np.ascontiguousarray(array_of(command.blocks))
            if command.copies:
                backend.copy_blocks(command.group, blocks)
            else:
                backend.give_back_blocks(command.group, blocks.reshape(-1))
        elif isinstance(command, Do) and command.method in CALLS:
            getattr(backend, command.method)()


def memory_of(backend: Backend) -> tuple[int, int, int, int]:
    """What a reply says of memory."""
    held = backend.memory()
    return held.weight_bytes, held.kv_bytes, held.mapped_bytes, held.promised_bytes


def told(error: Exception) -> RequestError:
    """An error as a reply has it."""
    if isinstance(error, TidemillError):
        return RequestError(error.kind, error.message, error.param, error.retryable)
    return RequestError(ErrorKind.INTERNAL, f"a process of the model failed: {error!r}")


class Heart:
    """Tells rank 0, on a thread, that this process is there and how far it is."""

    def __init__(self, channel: Channel) -> None:
        self.backend: Backend | None = None
        self._channel = channel
        threading.Thread(target=self._beat, name="tidemill-rank-beat", daemon=True).start()

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # rank 0 has ended
            while True:
                backend = self.backend
                self._channel.send(encode(Beat(0 if backend is None else backend.progress())))
                time.sleep(BEAT_SECONDS)


def serve(channel: Channel, descriptors: Sequence[int]) -> None:
    """Load, then run commands until the channel ends."""
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    first = channel.receive()
    if first is None:
        return

    def read() -> None:
        while (body := channel.receive()) is not None:
            commands.put(decode_command(body))
        os._exit(0)  # rank 0 has ended: no step can be finished, and no state needs to be saved

    begin = decode_begin(first)
    threading.Thread(target=read, name="tidemill-rank-link", daemon=True).start()
    heart = Heart(channel)
    if not begin.alone:
        pin_rank(begin.rank, begin.ranks)
    try:
        backend, identity = load_part(begin, descriptors)
    except Exception as error:
        if not isinstance(error, TidemillError):
            _log.exception("rank %d could not load its part of the model", begin.rank)
        channel.send(encode(Reply(told(error))))
        return
    heart.backend = backend
    channel.send(encode(Reply(None, memory_of(backend), identity)))
    server = RankServer(backend, channel)
    while True:
        server.run(commands.get())


def main() -> int:
    """Run a rank; see the module docstring."""
    link, *descriptors = map(int, sys.argv[1].split(","))
    # Ctrl-C reaches the terminal's whole process group; rank 0 decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    use_few_arenas()
    form, level = sys.argv[2].split(":")
    set_up_logging("rank", level, form)
    try:
        serve(LocalChannel(socket.socket(fileno=link)), descriptors)
    except OSError:
        return 1  # rank 0 has ended
    except Exception:
        _log.exception("a process that computes a part of the model fails")
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
