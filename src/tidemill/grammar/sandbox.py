"""GrammarSandbox: compiles grammars in a separate process before the engine compiles them.

llguidance is native code that parses clients' input. A grammar that causes unbounded recursion,
memory exhaustion or an endless loop ends the sandbox process, not the engine. It is then rejected
with an error that names the field and, for a JSON schema, the keyword. The process starts with the
first grammar, stays warm, and ends with its owner.

A compiled grammar cannot be moved between processes, so the engine compiles it again, from exactly
the source that was tried (`Tried.source`).
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
from tidemill.grammar.keyword_search import fatal_location
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
"""Maximum number of remembered fatal grammars; sending one again costs nothing."""

# The client's error by the signal that ended a worker. Other signals came from outside.
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
    """Tries grammars in a separate process, one at a time. Safe to call from several threads."""

    def __init__(self) -> None:
        self._shape: VocabularyShape | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._fatal: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        self._shaped = False  # the vocabulary was sent to the process
        self._closed = False

    def start(self) -> None:
        """Start the process; it imports its modules while the caller continues.

        Raises:
            TidemillError: UNAVAILABLE if it cannot be started.
        """
        with self._lock:
            self._ensure_process()

    def set_vocabulary(self, shape: VocabularyShape) -> None:
        """Set the vocabulary to try grammars with; required before the first `attempt`."""
        self._shape = shape

    @property
    def pid(self) -> int | None:
        """The id of the process, if it has been started."""
        return None if self._process is None else self._process.pid

    def attempt(self, grammar: Grammar) -> Tried:
        """Compile a grammar and advance it by some bytes, in the sandbox.

        Raises:
            TidemillError: BAD_REQUEST naming the field (or its keyword) that cannot be enforced, or
                not within the limits; UNAVAILABLE if no process can try it now.
        """
        check_size(grammar)
        digest = _digest(grammar)
        with self._lock:
            known = self._fatal.get(digest)
            if known is None:
                answer = self._try_twice(grammar)
                if isinstance(answer, Died):
                    known = self._find_cause(grammar, answer)
                    self._remember(digest, known)
        if known is not None:
            at, cause = known
            param = grammar.param + at
            raise bad_request(param, f"{param} {cause}; simplify it or leave it out")
        if isinstance(answer, Rejected):
            error = answer.error
            raise TidemillError(
                ErrorKind(error.kind), error.message, param=error.param, retryable=error.retryable
            )
        assert isinstance(answer, Tried)
        return answer

    def close(self) -> None:
        """Terminate the process; `attempt` fails from now on. Idempotent."""
        self._closed = True
        connection = self._connection
        if connection is not None:  # unblocks a thread that waits for a reply
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._end_process()

    # -- with the lock held ------------------------------------------------------------------

    def _try_twice(self, grammar: Grammar) -> FromSandbox:
        """Try a grammar; if the process ends for another reason, replace it and retry once."""
        for _ in range(2):
            answer = self._try(grammar)
            if answer is not None and not (isinstance(answer, Died) and not _is_fault(answer)):
                return answer
            self._end_process()
        raise _unavailable("its process has ended twice without a fault of the grammar")

    def _try(self, grammar: Grammar) -> FromSandbox | None:
        """Send a grammar; return the reply, or None if the process is gone or does not reply."""
        connection = self._ensure_process()
        assert self._shape is not None, "set_vocabulary comes first"
        try:
            if not self._shaped:
                send(connection, self._shape)
                self._shaped = True
            send(connection, Attempt(grammar))
            body = receive(connection)
        except OSError as error:
            _log.warning("the grammar sandbox does not reply (%s)", type(error).__name__)
            return None
        return from_sandbox.decode(body) if body else None

    def _find_cause(self, grammar: Grammar, died: Died) -> tuple[str, str]:
        """The cause of a worker's death: the path relative to the grammar's field, and a reason."""
        number = signal.Signals(died.signal)
        _log.warning("a grammar of kind %s ended the sandbox (%s)", grammar.kind, number.name)
        at, note = "", ""
        if number is not signal.SIGPROF:

            def is_fatal(part: Grammar) -> bool:
                answer = self._try(part)
                return isinstance(answer, Died) and _is_fault(answer)

            at, note = fatal_location(grammar, is_fatal)
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
                # Arenas of further threads would count as the grammar's memory.
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
            # Kill the worker too. Both end when the socket closes, unless they are stopped.
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
