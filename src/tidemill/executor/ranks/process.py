"""A rank's process: `python -m tidemill.executor.ranks.process RANK RANKS SOCKET MEMORY LOG`.

It loads its part of the model and runs the commands of rank 0, whose end of the socket it outlives
by nothing. SOCKET and MEMORY are inherited descriptors, LOG is FORM:LEVEL of its log; the
configuration is the socket's first message.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
from collections import deque
from dataclasses import replace

import msgspec
import numpy as np

from tidemill.backends.base import Backend, Shard, StepHandle
from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError
from tidemill.base.heap import use_few_arenas
from tidemill.base.log import get_logger, set_up_logging
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import RequestError
from tidemill.executor.ranks.cpus import pin_rank, threads_of
from tidemill.executor.ranks.messages import (
    CALLS,
    Allocate,
    Command,
    Do,
    LimitCache,
    MoveBlocks,
    Reply,
    Step,
    array_of,
    decode_command,
    inputs_of,
    receive,
    send,
)

_log = get_logger(__name__)

MAX_OUTSTANDING = 2


def load_part(config: EngineConfig, shard: Shard) -> Backend:
    """Load this rank's part of a configuration's model; returns when all weights are packed."""
    from tidemill.worker.opening import open_files
    from tidemill.worker.packed import kept_weights

    opened = open_files(config)
    files, tensors = opened.files, opened.tensors
    threads = threads_of(opened.options.threads, shard.rank, shard.ranks)
    options = replace(opened.options, shard=shard, threads=threads)
    packed = kept_weights(
        config, files, files.digest(), threads, tensors.error_note, lambda line: None
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
    return backend


class RankServer:
    """Runs commands on a backend, in the order in which they come."""

    def __init__(self, backend: Backend, link: socket.socket) -> None:
        self._backend, self._link = backend, link
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
            send(self._link, Reply(told(error), memory_of(self._backend)))
        else:
            send(self._link, Reply(None, memory_of(self._backend)))

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


def serve(rank: int, ranks: int, link: socket.socket, memory: int) -> None:
    """Load, then run commands until the link ends."""
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    first = receive(link)
    if first is None:
        return

    def read() -> None:
        while (body := receive(link)) is not None:
            commands.put(decode_command(body))
        os._exit(0)  # rank 0 has ended: no step can be finished, and no state needs to be saved

    config = msgspec.json.decode(first, type=EngineConfig)
    threading.Thread(target=read, name="tidemill-rank-link", daemon=True).start()
    pin_rank(rank, ranks)
    try:
        backend = load_part(config, Shard(rank, ranks, memory))
    except Exception as error:
        if not isinstance(error, TidemillError):
            _log.exception("rank %d could not load its part of the model", rank)
        send(link, Reply(told(error)))
        return
    send(link, Reply(None, memory_of(backend)))
    server = RankServer(backend, link)
    while True:
        server.run(commands.get())


def main() -> int:
    """Run a rank; see the module docstring."""
    rank, ranks, descriptor, memory = map(int, sys.argv[1:-1])
    # Ctrl-C reaches the terminal's whole process group; rank 0 decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    use_few_arenas()
    form, level = sys.argv[-1].split(":")
    set_up_logging(f"rank {rank}", level, form)
    try:
        serve(rank, ranks, socket.socket(fileno=descriptor), memory)
    except OSError:
        return 1  # rank 0 has ended
    except Exception:
        _log.exception("rank %d of the model fails", rank)
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
