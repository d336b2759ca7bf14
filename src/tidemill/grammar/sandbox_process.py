"""The process of the grammar sandbox: `python -m tidemill.grammar.sandbox_process`.

Its stdin is a socket to the engine. It imports and prepares everything once, and forks a worker
that tries grammars one by one. When a worker dies, the process reports the signal to the engine and
forks the next one, which takes milliseconds. Both end when the engine closes its end of the socket.

A worker has limits of CPU time, memory and stack. Exceeding one kills it, even within native code
that never returns.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import socket
import sys
import threading

from tidemill.base.errors import TidemillError
from tidemill.contract.request import RequestError
from tidemill.grammar.messages import (
    Attempt,
    Died,
    FromSandbox,
    Rejected,
    VocabularyShape,
    receive,
    send,
    to_sandbox,
)
from tidemill.grammar.sandbox_limits import CPU_SECONDS, MEMORY_BYTES, STACK_BYTES
from tidemill.grammar.trial import Trial

RECYCLED = 3
"""Exit code of a worker whose memory has grown; its successor has all of `MEMORY_BYTES` again."""

GROWN_BYTES = MEMORY_BYTES // 4


def main() -> int:
    """Run a sandbox; see the module."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Terminals and service managers signal all processes; the engine decides when this ends.
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the kernel's out-of-memory killer should choose this process
    connection = socket.socket(fileno=0)
    body = receive(connection)
    if not body:
        return 0
    shape = to_sandbox.decode(body)
    assert isinstance(shape, VocabularyShape)
    trial = Trial(shape)
    # A crash in native code prints the grammar's text, which must not reach a log.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    busy = mmap.mmap(-1, 1)  # shared with the workers: 1 while one tries a grammar
    return _supervise(connection, trial, busy)


def _supervise(connection: socket.socket, trial: Trial, busy: mmap.mmap) -> int:
    """Keep a worker running until the engine is gone."""
    while True:
        busy[0] = 0
        worker = os.fork()
        if worker == 0:
            _run_worker(connection, trial, busy)
        _, status = os.waitpid(worker, 0)
        if os.WIFSIGNALED(status):
            if busy[0]:
                try:
                    send(connection, Died(os.WTERMSIG(status)))
                except OSError:
                    return 0
        elif os.WEXITSTATUS(status) != RECYCLED:
            return os.WEXITSTATUS(status)


def _run_worker(connection: socket.socket, trial: Trial, busy: mmap.mmap) -> None:
    """Try grammars until the engine is gone; does not return."""
    code = 1

    def serve() -> None:
        nonlocal code
        code = _serve(connection, trial, busy)

    try:
        base = _address_space()
        if base:
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            bound = base + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
        # The system sets the main thread's stack size, so a new thread is used.
        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
    finally:
        os._exit(code)


def _serve(connection: socket.socket, trial: Trial, busy: mmap.mmap) -> int:
    base = _address_space()
    while body := receive(connection):
        message = to_sandbox.decode(body)
        assert isinstance(message, Attempt)
        busy[0] = 1
        # No handler: SIGPROF ends the process, even within native code.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        answer = _attempt(trial, message)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        busy[0] = 0
        try:
            send(connection, answer)
        except OSError:
            return 0
        if _address_space() > base + GROWN_BYTES:
            return RECYCLED
    return 0


def _attempt(trial: Trial, message: Attempt) -> FromSandbox:
    param = message.grammar.param
    try:
        return trial.attempt(message.grammar)
    except TidemillError as error:
        rejection = RequestError(error.kind, error.message, error.param, error.retryable)
    except (MemoryError, RecursionError) as error:
        text = f"{param} cannot be compiled within the limits ({type(error).__name__}); simplify it"
        rejection = RequestError("bad_request", text, param)
    except BaseException as error:  # a panic of native code is not an Exception
        text = f"{param} cannot be compiled ({type(error).__name__})"
        rejection = RequestError("bad_request", text, param)
    return Rejected(rejection)


def _address_space() -> int:
    """Bytes of address space in use; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * mmap.PAGESIZE
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
