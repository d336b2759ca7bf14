"""GrammarSandbox: grammars are tried in a process of their own before the engine compiles them.

llguidance is native code that reads clients' bytes. A grammar that makes it recurse without end,
take all memory or never return ends that process, not the engine, and is rejected with the field,
and for a JSON schema the keyword, named. The process starts with the first grammar, stays warm, and
ends with its owner.

A compiled grammar cannot be moved between processes, so the engine compiles it again: what was
tried is exactly what is compiled (`Tried.source`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from hashlib import blake2b

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.base.log import get_logger
from tidemill.contract.program import Grammar
from tidemill.grammar.keyword_search import fatal_place
from tidemill.grammar.languages import check_size
from tidemill.grammar.messages import (
    Attempt,
    Died,
    FromSandbox,
    Rejected,
    Tried,
    VocabularyShape,
    from_sandbox,
    receive,
    send,
)
from tidemill.grammar.sandbox_limits import CPU_SECONDS, MEMORY_BYTES, STACK_BYTES, WALL_SECONDS

_log = get_logger(__name__)

MAX_FATAL = 1024
"""Grammars that ended a process and are remembered, so that sending one again costs nothing."""

# How the end of a worker reads in the client's error. Any other signal came from outside.
_CAUSES = {
    signal.SIGPROF: f"takes more than {CPU_SECONDS:g} s of processor time to compile",
    signal.SIGABRT: f"takes more than {MEMORY_BYTES >> 20} MiB to compile, or breaks its compiler",
    signal.SIGSEGV: f"needs a stack of more than {STACK_BYTES >> 10} KiB to compile, or breaks its "
    "compiler",
    **dict.fromkeys(
        (signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP), "breaks its compiler"
    ),
}


class GrammarSandbox:
    """Tries grammars in another process, one at a time. Safe to call from several threads."""

    def __init__(self) -> None:
        self._shape: VocabularyShape | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._fatal: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        self._shaped = False  # the process knows the vocabulary
        self._closed = False

    def start(self) -> None:
        """Start the process, which imports what it needs while the caller goes on.

        Raises:
            TidemillError: UNAVAILABLE when it cannot be started.
        """
        with self._lock:
            self._ensure_process()

    def set_vocabulary(self, shape: VocabularyShape) -> None:
        """Say what grammars are tried with; before the first `attempt`."""
        self._shape = shape

    @property
    def pid(self) -> int | None:
        """Of the process, if it has been started."""
        return None if self._process is None else self._process.pid

    def attempt(self, grammar: Grammar) -> Tried:
        """Compile a grammar and follow it for some bytes.

        Raises:
            TidemillError: BAD_REQUEST naming the field (or its keyword) that cannot be honoured, or
                not within the bounds; UNAVAILABLE when no process can try it now.
        """
        check_size(grammar)
        digest = _digest(grammar)
        with self._lock:
            known = self._fatal.get(digest)
            if known is None:
                answer = self._ask_twice(grammar)
                if isinstance(answer, Died):
                    known = self._find_cause(grammar, answer)
                    self._remember(digest, known)
        if known is not None:
            at, cause = known
            param = grammar.param + at
            raise bad_request(param, f"{param} {cause}; simplify it or leave it out")
        if isinstance(answer, Rejected):
            told = answer.error
            raise TidemillError(
                ErrorKind(told.kind), told.message, param=told.param, retryable=told.retryable
            )
        assert isinstance(answer, Tried)
        return answer

    def close(self) -> None:
        """End the process; `attempt` fails from now on. Idempotent."""
        self._closed = True
        connection = self._connection
        if connection is not None:  # whoever waits for an answer is told by its end
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._end_process()

    # -- with the lock held ------------------------------------------------------------------

    def _ask_twice(self, grammar: Grammar) -> FromSandbox:
        """What becomes of a grammar; a process that is ended by something else is replaced once."""
        for _ in range(2):
            answer = self._ask(grammar)
            if answer is not None and not (isinstance(answer, Died) and not _is_fault(answer)):
                return answer
            self._end_process()
        raise _unavailable("its process has ended twice without a fault of the grammar")

    def _ask(self, grammar: Grammar) -> FromSandbox | None:
        """The answer; None when there is none: the process is gone, or says nothing."""
        connection = self._ensure_process()
        assert self._shape is not None, "the vocabulary comes first"
        try:
            if not self._shaped:
                send(connection, self._shape)
                self._shaped = True
            send(connection, Attempt(grammar))
            body = receive(connection)
        except OSError as error:
            _log.warning("the grammar sandbox does not answer (%s)", type(error).__name__)
            return None
        return from_sandbox.decode(body) if body else None

    def _find_cause(self, grammar: Grammar, died: Died) -> tuple[str, str]:
        """Where in a grammar the cause of a death is, below its field, and in words."""
        number = signal.Signals(died.signal)
        _log.warning("a grammar of kind %s ended its sandbox (%s)", grammar.kind, number.name)
        at, note = "", ""
        if number is not signal.SIGPROF:

            def is_fatal(part: Grammar) -> bool:
                answer = self._ask(part)
                return isinstance(answer, Died) and _is_fault(answer)

            at, note = fatal_place(grammar, is_fatal)
        return at, _CAUSES[number] + note

    def _remember(self, digest: bytes, cause: tuple[str, str]) -> None:
        self._fatal[digest] = cause
        while len(self._fatal) > MAX_FATAL:
            self._fatal.popitem(last=False)

    def _ensure_process(self) -> socket.socket:
        if self._closed:
            raise _unavailable("the engine is shutting down")
        if self._process is not None and self._process.poll() is not None:
            self._end_process()
        if self._process is None:
            self._spawn()
        assert self._connection is not None
        return self._connection

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(WALL_SECONDS)
        try:
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", "tidemill.grammar.sandbox_process"),
                # Threads' heaps would count as memory of the grammar.
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise _unavailable(f"its process cannot be started ({error})") from error
        finally:
            theirs.close()
        self._connection, self._shaped = ours, False

    def _end_process(self) -> None:
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            # Its worker as well; both would end by themselves, but for one that is stopped.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_fault(died: Died) -> bool:
    return died.signal in _CAUSES


def _digest(grammar: Grammar) -> bytes:
    text = f"{grammar.kind}\0{grammar.source}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()


def _unavailable(why: str) -> TidemillError:
    return TidemillError(
        ErrorKind.UNAVAILABLE, f"the grammar cannot be tried now: {why}", retryable=True
    )
