"""SupervisedEngine: the client that replaces a dead or stalled engine and replays its requests.

An engine process may die at any moment (a signal, out of memory, a bug), or stall. Then a new one
is started with the same resolved configuration and build, and every request in flight is replayed
with its accepted tokens. Since engines are deterministic, the rest of the output is the same; the
streams only see a pause. New requests wait meanwhile.

A request may be the cause of crashes. The flight log has the requests that were being computed,
and `suspects` attributes the crashes. Here suspects are replayed in isolation while all other
requests wait.

Everything runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger, summary
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import (
    AdapterUse,
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    RequestError,
)
from tidemill.contract.wire import (
    AdapterInfo,
    Cancel,
    DropAdapter,
    EngineInfo,
    EngineStats,
    Outputs,
    Submit,
)
from tidemill.engine.connection import EngineConnection, unavailable
from tidemill.engine.flightlog import request_key
from tidemill.engine.identity import difference, missing_files
from tidemill.engine.owned_memory import OwnedMemory
from tidemill.engine.quarantine import Quarantine, shared_verdict
from tidemill.engine.reports import LoadProgress
from tidemill.engine.restarts import RestartPolicy
from tidemill.engine.spawn import EngineHome, EngineProcess, ending, start_engine
from tidemill.engine.streams import Journal, Stream, StreamTable, engine_gone
from tidemill.engine.suspects import (
    CRASHES_FOR_QUARANTINE,
    CRASHES_FOR_SUSPICION,
    SuspectTracker,
    verdict,
)

if TYPE_CHECKING:
    from tidemill.engine.away import Away

_log = get_logger(__name__)

TICK_SECONDS = 0.25
EXIT_SECONDS = 5.0
# After so many starts that failed in the same way, further ones are not tried.
MAX_EQUAL_START_FAILURES = 3

# Errors of a start that the next start would have as well.
_PERMANENT = {ErrorKind.MODEL_FILE, ErrorKind.NOT_FOUND, ErrorKind.UNSUPPORTED, ErrorKind.CONFIG}


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery from the death of an engine, for the metrics.

    Attributes:
        cause: ``crash`` or ``stall``.
        seconds: from its detection to the replay.
        replayed: requests that were in flight.
    """

    cause: str
    seconds: float
    replayed: int


@dataclass(frozen=True, slots=True)
class Supervision:
    """How an engine is supervised.

    Attributes:
        stall_timeout: seconds without progress, while there is work, after which it is replaced.
        max_waiting: requests that may wait while no engine runs.
        restarts: makes the restart policy.
        on_recovery: called with every recovery.
    """

    stall_timeout: float = 5.0
    max_waiting: int = 4096
    restarts: Callable[[], RestartPolicy] = RestartPolicy
    on_recovery: Callable[[Recovery], None] = field(default=lambda recovery: None)


@dataclass(slots=True)
class _IsolatedReplay:
    """The isolated replay of a suspect; `before`: tokens per choice at its start."""

    stream: Stream
    before: list[int]

    def passed(self) -> bool:
        """True if the request ended, or every open choice has a new token."""
        journal = self.stream.journal
        return all(len(journal.accepted[c]) > self.before[c] for c in journal.open_choices)


class SupervisedEngine:
    """See the module docstring, and `engine.client.EngineClient`. Made by `open`.

    Attributes:
        failed: completes with the error when the engine is abandoned.
        memory: resizes the KV cache, puts the engine to sleep and wakes it.
        loaded: how far the weights are loaded; None before that is known.
    """

    def __init__(self, config: EngineConfig, log_level: str, supervision: Supervision) -> None:
        self.failed: asyncio.Future[TidemillError] = asyncio.get_running_loop().create_future()
        self._config = config
        self._log_level = log_level
        self._supervision = supervision
        self._home = EngineHome(config.max_num_seqs)
        self._table = StreamTable()
        self._suspects = SuspectTracker()
        self._quarantine = Quarantine()
        self._restarts = supervision.restarts()
        self._work = asyncio.Event()
        self._problem: str | None = "the engine is loading"
        self._closing: str | None = None
        self._closed = False
        self._isolated_replay: _IsolatedReplay | None = None
        self._replay_logged = False  # the isolated replays were logged
        self._tokens = 0  # received in total
        self._last_end = ""  # how the last engine ended
        self._away: Away | None = None  # made when requests are first moved to another engine
        self.memory = OwnedMemory(self)
        self.loaded: LoadProgress | None = None
        self._on_load: Callable[[LoadProgress], None] = lambda progress: None
        self._process: EngineProcess
        self._connection: EngineConnection
        self._info: EngineInfo
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        config: EngineConfig,
        progress: Callable[[str], None] = lambda line: None,
        *,
        on_load: Callable[[LoadProgress], None] = lambda progress: None,
        background: bool = False,
        log_level: str = "info",
        supervision: Supervision | None = None,
    ) -> SupervisedEngine:
        """Start an engine process and supervise it.

        Args:
            config: the engine's configuration.
            progress: called with a line for each stage of loading.
            on_load: called with how far the weights are loaded, of later engines as well.
            background: while its weights load, it gets a quarter of the processors when others
                want them, too (where `base.cpu_share` can do that). Later engines do not.
            log_level: level of the engine's log.
            supervision: how it is supervised.

        Raises:
            TidemillError: why the first engine could not start; see `start_engine`.
        """
        engine = cls(config, log_level, supervision or Supervision())
        engine._on_load = on_load
        try:
            await engine._start(progress, background=background)
        except BaseException:
            engine._home.close()
            raise
        engine._info = engine._connection.info
        engine._config = resolved(config, engine._info)
        engine._problem = None
        engine._restarts.started(monotonic())
        engine._task = asyncio.create_task(engine._supervise(), name="tidemill-supervisor")
        return engine

    # -- EngineClient ------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """See EngineClient. A resized KV cache has other sizes than at the start."""
        return self.memory.sized(self._info)

    @property
    def pid(self) -> int:
        """Process id of the current engine process, or of the last one."""
        return self._process.pid

    @property
    def problem(self) -> str | None:
        """See EngineClient."""
        return self._closing or self._problem

    @property
    def ended(self) -> str | None:
        """Why there will be no engine any more; None if there may be."""
        return self._closing or (self.failed.result().message if self.failed.done() else None)

    @property
    def connection(self) -> EngineConnection:
        """The connection to the current engine, or to the last one."""
        return self._connection

    @property
    def num_requests(self) -> int:
        """Requests in flight or waiting."""
        return len(self._table)

    @property
    def last_stats(self) -> EngineStats:
        """See EngineClient."""
        return self._table.stats

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """See EngineClient."""
        self._table.on_stats = callback

    def journals(self) -> list[Journal]:
        """Journals of the requests in flight."""
        return self._table.journals()

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        """See EngineClient. While no engine runs, the request waits for the next one.

        Raises:
            TidemillError: UNAVAILABLE if draining or abandoned, OVERLOADED if too many requests
                wait, INTERNAL for a request that is quarantined.
        """
        if self._closing is not None:
            raise unavailable(self._closing)
        if self.failed.done():
            raise unavailable(self.failed.result().message)
        if self.memory.asleep:
            raise TidemillError(ErrorKind.INTERNAL, "the engine sleeps; it must be woken first")
        mark = self._suspects.quarantined(request)
        if mark is not None:
            _log.warning(
                "request %s is rejected: quarantined fingerprint %s", request.request_id, mark
            )
            raise TidemillError(ErrorKind.INTERNAL, verdict(mark))
        if (trait := self._quarantine.holds(request)) is not None:
            _log.warning("request %s is rejected: quarantined %s %s", request.request_id, *trait)
            raise TidemillError(ErrorKind.INTERNAL, shared_verdict(trait))
        send = self._sends
        waiting = len(self._table) - self._table.num_sent
        taken = self._away is not None and self._away.taking
        if not (send or taken) and waiting >= self._supervision.max_waiting:
            raise TidemillError(
                ErrorKind.OVERLOADED,
                f"the engine is being replaced and {waiting} requests already wait for it; "
                "try again in a few seconds",
                retryable=True,
            )
        stream = self._table.wait(request)
        if send or (self._away is not None and self._away.claim(stream)):
            self._send(stream)
        self._work.set()
        return stream

    def cancel(
        self, request_id: str, choice: int | None = None, reason: str = FinishReason.CANCELLED
    ) -> None:
        """See EngineClient."""
        stream = self._table.get(request_id)
        if stream is None:
            return
        journal = stream.journal
        for open_choice in journal.open_choices if choice is None else (choice,):
            journal.cancelled.setdefault(open_choice, FinishReason(reason))
        if self._table.is_sent(stream):
            self._cancel_sent(stream, choice, str(reason))
        elif stream.settle():
            self._table.forget(request_id)

    async def leave(self, address: str) -> int:
        """Have another server's engine compute this one's requests, the running ones from their
        next token on, and new ones; how many were moved. See `engine.away`.

        Raises:
            TidemillError: why it cannot; then all stay.
        """
        if self._away is None:
            from tidemill.engine.away import Away  # few requests move

            self._away = Away(self)
        return await self._away.leave(address)

    async def bring_back(self) -> int:
        """Undo `leave`; how many running requests came back."""
        return 0 if self._away is None else await self._away.bring_back()

    @property
    def away(self) -> tuple[str, int] | None:
        """Where requests are computed (`leave`), and how many; None: here."""
        away = self._away
        if away is None or away.address is None:
            return None
        return away.address, away.count()

    def streams(self) -> list[Stream]:
        """All open streams."""
        return self._table.streams()

    def suspected(self) -> bool:
        """Requests are being looked at as the cause of crashes."""
        return self._isolated_replay is not None or bool(list(self._suspects.suspects()))

    def deliver(self, message: Outputs) -> None:
        """Outputs of streams, of another engine."""
        self._deliver(message)

    def switch(self, stream: Stream) -> None:
        """Send a stream to the engine that it belongs to now, or let it wait for this one."""
        assert self._away is not None
        wire_id, here = stream.journal.wire_id, not self._away.has(stream)
        if self._table.recall(stream) and here and self._away.taking:
            self._connection.send(Cancel(wire_id))
        if stream.settle():
            self._forget(stream.journal.request.request_id)
        elif self._away.claim(stream) or self._sends:
            self._send(stream)
        self._work.set()

    async def stats(self) -> EngineStats:
        """See EngineClient."""
        if self._problem is not None:
            raise unavailable(self._problem)
        self._work.set()
        return await self._connection.stats()

    async def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """See EngineClient. Where an engine ends meanwhile, the next one is asked."""
        while True:
            connection = self._connection
            try:
                if self._problem is not None:
                    raise unavailable(self._problem)
                self._work.set()
                return await connection.check_adapter(use)
            except TidemillError as error:
                if self.ended is not None or error.kind is not ErrorKind.UNAVAILABLE:
                    raise
                if connection.open and self._problem is None:
                    raise
            await asyncio.sleep(TICK_SECONDS)

    def drop_adapter(self, digest: str) -> None:
        """See EngineClient. Another engine never loads it."""
        self._connection.send(DropAdapter(digest))

    def drain(self, reason: str) -> None:
        """Reject new requests; those in flight continue."""
        self._closing = self._closing or reason

    async def idle(self) -> None:
        """Return when no request is in flight."""
        while len(self._table):
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """See EngineClient. Requests in flight end with a retryable error. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._closing = reason = "the server is shutting down; send the request again"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._table.fail_all(engine_gone(reason))
        if self._away is not None:
            await self._away.close()
        await self._connection.close(reason)
        await self._process.stop()
        self._home.close()

    # -- starting and sending ----------------------------------------------------------------

    async def _start(self, progress: Callable[[str], None], *, background: bool = False) -> None:
        config = self._config
        process = await start_engine(
            config,
            self._home,
            progress,
            on_load=self._note_load,
            background=background,
            log_level=self._log_level,
        )
        try:
            self._connection = await EngineConnection.connect(
                process.socket_path, config.digest(), self._deliver, lambda reason: None, owner=True
            )
        except BaseException:
            await process.kill()
            raise
        self._process = process

    def _note_load(self, progress: LoadProgress) -> None:
        self.loaded = progress
        self._on_load(progress)

    @property
    def _sends(self) -> bool:
        """The engine of this process takes requests now."""
        return self._problem is None and self._isolated_replay is None

    def _send(self, stream: Stream) -> None:
        request = self._table.send(stream)
        if self._away is not None and self._away.claim(stream):
            self._away.submit(request)
        else:
            self._connection.send(Submit(request))
        for choice in stream.journal.ended | set(stream.journal.cancelled):
            reason = stream.journal.cancelled.get(choice, FinishReason.CANCELLED)
            self._cancel_sent(stream, choice, str(reason))

    def _cancel_sent(self, stream: Stream, choice: int | None, reason: str) -> None:
        if self._away is not None and self._away.has(stream):
            self._away.cancel(stream.journal.wire_id, choice, reason)
        else:
            self._connection.send(Cancel(stream.journal.wire_id, choice, reason))

    def _is_here(self, stream: Stream) -> bool:
        return self._away is None or not self._away.has(stream)

    def _deliver(self, message: Outputs) -> None:
        self._note_good_ends(message)
        self._table.deliver(message)
        received = sum(len(output.token_ids) for output in message.outputs)
        self._tokens += received
        if received or any(map(_is_answer, message.outputs)):
            self._restarts.progressed()
        if self._isolated_replay is not None and self._isolated_replay.passed():
            self._clear_suspect(self._isolated_replay.stream)

    def _note_good_ends(self, message: Outputs) -> None:
        """Clear the traits of requests of which a choice finished normally."""
        for output in message.outputs:
            if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                stream = self._table.sent(output.request_id)
                if stream is not None and not stream.journal.ended:
                    self._quarantine.ended_well(stream.journal.request)

    # -- watching ----------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            while not self.failed.done():
                await self._recover(await self._watch())
        except Exception as error:
            _log.exception("unhandled error in the engine's supervisor")
            self._abandon_engine(f"unhandled error in the engine's supervisor: {summary(error)}")

    async def _watch(self) -> str:
        """Wait for the engine's end; returns the cause, ``crash`` or ``stall``."""
        lost = asyncio.ensure_future(self._connection.wait_lost())
        exited = asyncio.ensure_future(self._process.wait())
        try:
            pulse, since, unchanged = self._process.log.pulse, monotonic(), 0.0
            while True:
                await asyncio.wait(
                    (lost, exited), timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if lost.done() or exited.done():
                    return "crash"
                if len(self._table) > self._table.num_sent:  # waiting for an isolated replay
                    self._expire()
                now, latest = monotonic(), self._process.log.pulse
                # At most two ticks per iteration, since this process may itself have been stopped.
                unchanged += min(now - since, 2 * TICK_SECONDS)
                since = now
                if latest != pulse or not self._work_waits():
                    pulse, unchanged = latest, 0.0
                elif unchanged >= self._supervision.stall_timeout:
                    return "stall"
                if not self._work_waits():
                    await self._rest(lost, exited)
                    pulse, since = self._process.log.pulse, monotonic()
        finally:
            for task in (lost, exited):
                task.cancel()

    async def _rest(self, *ends: asyncio.Future[Any]) -> None:
        """Sleep until there is work, or until the engine ends."""
        self._work.clear()
        work = asyncio.ensure_future(self._work.wait())
        try:
            await asyncio.wait((*ends, work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()

    def _work_waits(self) -> bool:
        away = 0 if self._away is None else self._away.count()
        return self._table.num_sent > away or self._connection.unanswered

    # -- recovering --------------------------------------------------------------------------

    async def _recover(self, cause: str) -> None:
        began = monotonic()
        if cause == "crash":  # its last messages may still be in the socket
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await self._connection.wait_lost()
        if (fatal := self._connection.fatal) is not None:
            self._problem = self._connection.reason
            await self._end_process(kill=False)
            self._abandon_engine(fatal.message)
            return
        timeout = self._supervision.stall_timeout
        what = f"has made no progress for {timeout:g} s" if cause == "stall" else "has ended"
        self._problem = f"the engine process {what} and is being replaced"
        self._connection.abort(self._problem)
        self._table.lost(cause, self._is_here)
        code = await self._end_process(kill=cause == "stall")
        in_flight = self._table.num_sent
        self._last_end = what if cause == "stall" else ending(code)
        _log.error(
            "engine process %d %s, with %d requests in flight; it is being replaced",
            self._process.pid,
            self._last_end,
            in_flight,
        )
        self._analyse_crash()
        if (why := missing_files(self._info)) is not None:
            self._abandon_engine(why)
            return
        if self.memory.asleep:
            self._problem = "the engine process has ended while it slept; it starts when it wakes"
            await self.memory.wanted.wait()
            began = monotonic()
        expiring = asyncio.ensure_future(self._expire_meanwhile())
        try:
            if not await self._replace():
                return
        finally:
            expiring.cancel()
        await self.memory.restore(self._connection)
        self._problem = None
        self._restarts.started(monotonic())
        seconds = monotonic() - began
        _log.warning("engine process %d resumes after %.1f s", self._process.pid, seconds)
        self._resume_streams()
        self._supervision.on_recovery(Recovery(cause, seconds, in_flight))

    async def _end_process(self, *, kill: bool) -> int:
        """End the process and return its exit code; unless `kill`, first wait for it to exit."""
        if not kill:
            try:
                async with asyncio.timeout(EXIT_SECONDS):
                    return await self._process.wait()
            except TimeoutError:
                _log.error("engine process %d does not exit and is killed", self._process.pid)
        return await self._process.kill()

    def _analyse_crash(self) -> None:
        """Attribute the crash to requests, quarantine a poison request, and recall all streams."""
        keys = self._process.log.suspects()
        streams = {
            stream.journal.request.request_id: stream
            for stream in self._table.streams()
            if self._is_here(stream)
        }
        present = [i for i, s in streams.items() if request_key(s.journal.wire_id) in keys]
        in_flight = [i for i, s in streams.items() if self._table.is_sent(s)]
        self._suspects.retain(streams)
        replay, self._isolated_replay = self._isolated_replay, None
        if replay is None:
            self._suspects.death(present, in_flight)
        else:
            suspect = replay.stream.journal.request.request_id
            if suspect in present or self._suspects.suspected_in_flight(suspect):
                self._record_isolated_crash(replay.stream)
            else:
                self._suspects.death((), in_flight)
        for request_id, stream in streams.items():
            self._table.recall(stream)
            if stream.settle():
                self._forget(request_id)

    def _record_isolated_crash(self, stream: Stream) -> None:
        """Handle a crash during this suspect's isolated replay: quarantine it if it is proven."""
        request = stream.journal.request
        one_case = self._quarantine.ended_alone(request)
        if (
            not self._suspects.record_isolated_crash(request.request_id, stream.journal.tokens)
            and not one_case
        ):
            return
        mark = self._suspects.quarantine(request)
        self._quarantine.quarantined(request)
        _log.error(
            "request %s (fingerprint %s) crashed two engines while it was computed alone%s, at %d "
            "tokens of prompt and %d of output; it is quarantined and ends with an error",
            request.request_id,
            mark,
            ", one of them in a variant" if one_case else "",
            len(request.prompt_token_ids),
            stream.journal.tokens,
        )
        self._restarts.explained(CRASHES_FOR_SUSPICION + CRASHES_FOR_QUARANTINE)
        stream.fail(RequestError(ErrorKind.INTERNAL, verdict(mark)))
        self._fail_variants()

    def _fail_variants(self) -> None:
        """End the requests that have a quarantined trait and have not received any token."""
        for stream in self._table.streams():
            journal = stream.journal
            if not journal.tokens and (trait := self._quarantine.holds(journal.request)):
                _log.error("request %s ends: quarantined %s %s", journal.request.request_id, *trait)
                stream.fail(RequestError(ErrorKind.INTERNAL, shared_verdict(trait)))

    async def _replace(self) -> bool:
        """Start the next engine; False if it is abandoned."""
        alike = 0  # failures of starts in a row that were the same
        while True:
            delay = self._restarts.delay(monotonic())
            if delay is None:
                self._abandon_engine(
                    f"the engine has ended too often ({self._restarts.bound}); the last time it "
                    f"{self._last_end}"
                )
                return False
            await asyncio.sleep(delay)
            try:
                await self._start(lambda line: _log.debug("%s", line))
            except TidemillError as error:
                end = f"could not start: {error.message}"
                alike = alike + 1 if end == self._last_end else 1
                self._last_end = end
                _log.error("the new engine %s", end)
                if error.kind in _PERMANENT or (
                    alike >= MAX_EQUAL_START_FAILURES and not _is_transient(error)
                ):
                    self._abandon_engine(f"the new engine could not start: {error.message}")
                    return False
                continue
            why = difference(self._info, self._connection.info)
            if why is None:
                return True
            self._connection.abort("another engine")
            await self._process.kill()
            self._abandon_engine(why)
            return False

    async def _expire_meanwhile(self) -> None:
        """Enforce deadlines while no engine does."""
        while True:
            self._expire()
            await asyncio.sleep(TICK_SECONDS)

    def _expire(self) -> None:
        """End the requests whose deadline has passed and that are not sent to an engine."""
        now = monotonic()
        error = RequestError(ErrorKind.TIMEOUT, "the request timed out", None, True)
        for stream in self._table.streams():
            request = stream.journal.request
            late = request.deadline is not None and request.deadline <= now
            if late and not self._table.is_sent(stream):
                stream.fail(error)
                self._forget(request.request_id)

    def _resume_streams(self) -> None:
        """Send the requests to the engine: the next suspect alone, or without suspects all."""
        suspects = [s for i in self._suspects.suspects() if (s := self._table.get(i)) is not None]
        if suspects:
            stream = suspects[0]
            level = logging.DEBUG if self._replay_logged else logging.WARNING
            _log.log(
                level, "%d requests are suspects of crashes; each is replayed alone", len(suspects)
            )
            self._replay_logged = True
            self._isolated_replay = _IsolatedReplay(
                stream, [len(tokens) for tokens in stream.journal.accepted]
            )
            self._send(stream)
            return
        self._replay_logged = False
        for stream in self._table.streams():
            if not self._table.is_sent(stream):
                self._send(stream)

    def _clear_suspect(self, stream: Stream) -> None:
        """Clear a suspect that made progress alone; it waits until the others were replayed."""
        journal = stream.journal
        self._isolated_replay = None
        self._suspects.clear(journal.request.request_id)
        if journal.open_choices:
            self._connection.send(Cancel(journal.wire_id))
            self._table.recall(stream)
            if stream.settle():
                self._forget(journal.request.request_id)
        self._resume_streams()

    def _forget(self, request_id: str) -> None:
        self._table.forget(request_id)
        self._suspects.clear(request_id)

    def _abandon_engine(self, why: str) -> None:
        self._problem = why
        _log.critical("the server stops: %s", why)
        self._table.fail_all(engine_gone(why))
        if not self.failed.done():
            self.failed.set_result(unavailable(why))


def resolved(config: EngineConfig, info: EngineInfo) -> EngineConfig:
    """The configuration with the automatic choices of the first engine made explicit, so that the
    next one makes the same choices even if the free memory differs."""
    return msgspec.structs.replace(
        config,
        kv_memory=info.num_blocks * info.block_size * info.kv_bytes_per_token,
        recurrent_sequences=info.recurrent_sequences,
        recurrent_snapshots=info.recurrent_snapshots,
        recurrent_drafts=info.recurrent_drafts,
        threads=info.threads,
        isa=info.isa if info.backend == "native" else config.isa,
    )


def _is_transient(error: TidemillError) -> bool:
    """True if a failed start may succeed once the machine has free resources again."""
    return error.kind is ErrorKind.RESOURCE or ending(-signal.SIGKILL) in error.message


def _is_answer(output: ChoiceOutput) -> bool:
    """True if it ends a choice normally; it may have no tokens (an embedding)."""
    return output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
