"""The server's side of a pipeline's process: started, spoken to, and ended.

Several requests run in one process at the same time; each is a `Run` with its own queue of events.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.pipelines.messages import (
    Call,
    Credit,
    Done,
    Drop,
    Ended,
    Failed,
    Part,
    Raised,
    Ready,
    Stop,
    Text,
    ToProcess,
    frame,
    read_frame,
    to_server,
)

log = get_logger(__name__)

START_SECONDS = 60.0
"""A file that is not loaded by then is given up."""

STOP_SECONDS = 5.0
"""A run that has not ended so long after it was stopped ends with its process."""

MAX_CALLS = 256
"""Calls of one run at the same time."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The process has ended, and why."""

    reason: str


Event = Text | Ended | Raised | Gone
Reply = Callable[[Part | Done | Failed], Awaitable[None]]
Answer = Callable[[Call, Reply], Coroutine[Any, Any, None]]
"""Answers a call of a run: sends parts, and at the end one `Done` or `Failed`."""


@dataclass(slots=True)
class Run:
    """A request in the process.

    Attributes:
        number: its id.
        answer: answers its calls.
        events: what it sent; the last is no `Text`.
        calls: its calls in progress, by number.
    """

    number: int
    answer: Answer
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    calls: dict[int, asyncio.Task[None]] = field(default_factory=dict)


class PipelineProcess:
    """A running process; made by `start`.

    Attributes:
        pid: of the process.
        gone: why it has ended; None while it runs.
    """

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = process.pid
        self.gone: str | None = None
        self._name = name
        self._process = process
        self._reader = reader
        self._writer = writer
        self._runs: dict[int, Run] = {}
        self._stopping: dict[int, asyncio.TimerHandle] = {}
        self._last = 0
        self._retired = False
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, file: str, memory: int) -> PipelineProcess:
        """Start a process and load the file in it.

        Raises:
            TidemillError: UNAVAILABLE with what is wrong with the file, for the operator.
        """
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "tidemill.pipelines.process", file, str(memory)),
                # Arenas of further threads would count as memory.
                env={**os.environ, "MALLOC_ARENA_MAX": "2"},
                stdin=theirs.fileno(),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise TidemillError(
                ErrorKind.UNAVAILABLE, f"its process cannot be started: {error}"
            ) from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        started = cls(name, process, reader, writer)
        try:
            async with asyncio.timeout(START_SECONDS):
                await started._wait_ready()
        except TimeoutError:
            await started.close()
            raise TidemillError(
                ErrorKind.UNAVAILABLE, f"the file is not loaded after {START_SECONDS:g} s"
            ) from None
        except BaseException:
            await started.close()
            raise
        started._reading = asyncio.create_task(started._read(), name=f"pipeline-{name}")
        return started

    async def _wait_ready(self) -> None:
        body = await read_frame(self._reader)
        message = None if body is None else to_server.decode(body)
        if message is None:
            reason = _ending(await self._process.wait())
            raise TidemillError(ErrorKind.UNAVAILABLE, f"its process ended at its start: {reason}")
        if isinstance(message, Ready) and message.problem is not None:
            raise TidemillError(ErrorKind.UNAVAILABLE, message.problem)

    # -- runs --------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Requests run in it."""
        return bool(self._runs)

    def begin(self, answer: Answer) -> Run:
        """A run that is not started yet; `end` must be called."""
        self._last += 1
        run = self._runs[self._last] = Run(self._last, answer)
        if self.gone is not None:
            run.events.put_nowait(Gone(self.gone))
        return run

    async def send(self, message: ToProcess) -> None:
        """Send a message; waits while much is still to be sent.

        Raises:
            ValueError, TypeError: it is too large, or holds what cannot be sent.
        """
        self._write(message)
        if self.gone is None:
            with contextlib.suppress(OSError, RuntimeError):  # the reader notices
                await self._writer.drain()

    def _write(self, message: ToProcess) -> None:
        data = frame(message)
        # The other side may be gone before the reader has noticed.
        if self.gone is None and not self._writer.is_closing():
            with contextlib.suppress(OSError, RuntimeError):  # uvloop: the handler is closed
                self._writer.write(data)

    async def next(self, run: Run) -> Event:
        """A run's next event."""
        event = await run.events.get()
        if isinstance(event, Text):
            self._write(Credit(run.number, len(event.text.encode())))
        return event

    def end(self, run: Run, *, ended: bool) -> None:
        """The server is done with a run.

        Args:
            run: the run.
            ended: it has ended in the process; else it is stopped.
        """
        self._runs.pop(run.number, None)
        for task in run.calls.values():
            task.cancel()
        if not ended and self.gone is None:
            self._write(Stop(run.number))
            loop = asyncio.get_running_loop()
            self._stopping[run.number] = loop.call_later(STOP_SECONDS, self._stuck)
        self._check_retired()

    def _stuck(self) -> None:
        log.warning(
            "pipeline %s: a request that was cancelled or out of time has not ended after %g s; "
            "its process is replaced",
            *(self._name, STOP_SECONDS),
        )
        self.kill("a request in its process did not end when it was cancelled")

    # -- what the process sends --------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while (body := await read_frame(self._reader)) is not None:
                self._take(to_server.decode(body))
        except Exception:  # not a message: the file's code wrote into the socket
            log.exception("pipeline %s: its process sent what is no message", self._name)
            self.kill("its process sent what is no message")
        reason = _ending(await self._process.wait())
        if self.gone is None:
            if not self._retired:
                log.error("pipeline %s: its process has ended: %s", self._name, reason)
            self._lose(reason)

    def _take(self, message: Text | Call | Drop | Ended | Raised | Ready) -> None:
        if isinstance(message, Drop):
            for run in self._runs.values():
                if (task := run.calls.get(message.call)) is not None:
                    task.cancel()
            return
        if isinstance(message, Ready):
            return
        if isinstance(message, Ended | Raised) and message.run in self._stopping:
            self._stopping.pop(message.run).cancel()
            self._check_retired()
        found = self._runs.get(message.run)
        if isinstance(message, Call):
            self._call(message, found)
        elif found is not None:
            found.events.put_nowait(message)

    def _call(self, call: Call, run: Run | None) -> None:
        if run is None or len(run.calls) >= MAX_CALLS:
            kind, why = ErrorKind.CANCELLED, "the request has ended"
            if run is not None:
                kind, why = ErrorKind.OVERLOADED, f"at most {MAX_CALLS} calls run at once"
            self._write(Failed(call.call, kind, why))
            return
        task = asyncio.create_task(run.answer(call, self.send))
        run.calls[call.call] = task

        def done(task: asyncio.Task[None]) -> None:
            run.calls.pop(call.call, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a call of pipeline %s failed", self._name, exc_info=error)

        task.add_done_callback(done)

    # -- its end -----------------------------------------------------------------------------

    def retire(self) -> None:
        """End it as soon as no request runs in it."""
        self._retired = True
        self._check_retired()

    def _check_retired(self) -> None:
        if self._retired and not self._runs and not self._stopping:
            self.kill("a newer version of its file runs")

    def kill(self, reason: str) -> None:
        """End it at once; its requests end with a retryable error."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self.gone is not None:
            return
        self.gone = reason
        for timer in self._stopping.values():
            timer.cancel()
        self._stopping.clear()
        for run in self._runs.values():
            run.events.put_nowait(Gone(reason))
        self._writer.close()

    async def close(self) -> None:
        """End it; returns when it has ended."""
        self.kill("the server unloads it")
        await self._process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)


def _ending(code: int) -> str:
    if code < 0:
        hint = " (by a person, or for lack of memory)" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"exit code {code}"
