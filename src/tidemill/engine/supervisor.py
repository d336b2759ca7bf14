"""SupervisedEngine: the client that replaces its engine and goes on.

An engine process may end at any moment (a signal, no memory, a defect), or stand still. Then a new
one is started with the same resolved configuration and build, and every request in flight is
given to it as far as it had got: determinism makes the rest what it would have been, and the
streams notice nothing but a pause. Requests that come meanwhile wait.

A request may be what ends engines. The flight log says who was being computed; `suspects` weighs
it, and here suspects are computed alone while everybody else waits.

Everything happens on the client's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger, summary
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, RequestError
from tidemill.contract.wire import Cancel, EngineInfo, EngineStats, Outputs, Submit
from tidemill.engine.connection import EngineConnection, unavailable
from tidemill.engine.flightlog import request_key
from tidemill.engine.identity import difference, missing_files
from tidemill.engine.quarantine import Quarantine, shared_verdict
from tidemill.engine.restarts import RestartPolicy
from tidemill.engine.spawn import EngineHome, EngineProcess, ending, start_engine
from tidemill.engine.streams import Journal, Stream, StreamTable, engine_gone
from tidemill.engine.suspects import (
    CRASHES_FOR_QUARANTINE,
    CRASHES_FOR_SUSPICION,
    SuspectTracker,
    verdict,
)

_log = get_logger(__name__)

TICK_SECONDS = 0.25
EXIT_SECONDS = 5.0
# A start that has failed so often in the same way will not succeed.
STARTS_ALIKE = 3

# Errors at a start that the next start would meet as well.
_LASTING = {ErrorKind.MODEL_FILE, ErrorKind.NOT_FOUND, ErrorKind.UNSUPPORTED, ErrorKind.CONFIG}


@dataclass(frozen=True, slots=True)
class Recovery:
    """A death and what was done about it, for the metrics.

    Attributes:
        cause: ``crash`` or ``stall``.
        seconds: from noticing it to the replay.
        replayed: requests that were in flight.
    """

    cause: str
    seconds: float
    replayed: int


@dataclass(frozen=True, slots=True)
class Supervision:
    """How an engine is watched.

    Attributes:
        stall_timeout: seconds without progress, while work waits, after which it is replaced.
        max_waiting: requests that may wait while there is no engine.
        restarts: makes the policy of restarts.
        on_recovery: told of every recovery.
    """

    stall_timeout: float = 5.0
    max_waiting: int = 4096
    restarts: Callable[[], RestartPolicy] = RestartPolicy
    on_recovery: Callable[[Recovery], None] = field(default=lambda recovery: None)


@dataclass(slots=True)
class _IsolatedReplay:
    """A suspect that is computed alone; `before`: tokens per choice when it began."""

    stream: Stream
    before: list[int]

    def passed(self) -> bool:
        """It ended, or every open choice has got on."""
        journal = self.stream.journal
        return all(len(journal.accepted[c]) > self.before[c] for c in journal.open_choices)


class SupervisedEngine:
    """See the module, and `engine.client.EngineClient`. Made by `open`.

    Attributes:
        failed: completes with the error when the engine is given up.
    """

    def __init__(self, config: EngineConfig, log_level: str, supervision: Supervision) -> None:
        self.failed: asyncio.Future[TidemillError] = asyncio.get_running_loop().create_future()
        self._config = config
        self._log_level = log_level
        self._supervision = supervision
        self._home = EngineHome(config.max_num_seqs)
        self._table = StreamTable()
        self._docket = SuspectTracker()
        self._quarantine = Quarantine()
        self._restarts = supervision.restarts()
        self._work = asyncio.Event()
        self._problem: str | None = "the engine is loading"
        self._closing: str | None = None
        self._closed = False
        self._isolated_replay: _IsolatedReplay | None = None
        self._replay_logged = False  # said already
        self._tokens = 0  # received, ever
        self._last_end = ""  # how the last engine ended
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
        log_level: str = "info",
        supervision: Supervision | None = None,
    ) -> SupervisedEngine:
        """Start an engine process and watch over it.

        Raises:
            TidemillError: why the first engine could not start; see `start_engine`.
        """
        engine = cls(config, log_level, supervision or Supervision())
        try:
            await engine._start(progress)
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
        """See EngineClient."""
        return self._info

    @property
    def pid(self) -> int:
        """Of the engine process there is, or was last."""
        return self._process.pid

    @property
    def problem(self) -> str | None:
        """See EngineClient."""
        return self._closing or self._problem

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
        """See EngineClient. Without an engine the request waits for the next one.

        Raises:
            TidemillError: UNAVAILABLE when draining or given up, OVERLOADED when too many wait,
                INTERNAL for a request that was found to end engines.
        """
        if self._closing is not None:
            raise unavailable(self._closing)
        if self.failed.done():
            raise unavailable(self.failed.result().message)
        mark = self._docket.quarantined(request)
        if mark is not None:
            _log.warning("request %s is refused: fingerprint %s", request.request_id, mark)
            raise TidemillError(ErrorKind.INTERNAL, verdict(mark))
        if (trait := self._quarantine.holds(request)) is not None:
            _log.warning("request %s is refused: %s %s", request.request_id, *trait)
            raise TidemillError(ErrorKind.INTERNAL, shared_verdict(trait))
        send = self._problem is None and self._isolated_replay is None
        waiting = len(self._table) - self._table.num_sent
        if not send and waiting >= self._supervision.max_waiting:
            raise TidemillError(
                ErrorKind.OVERLOADED,
                f"the engine is being replaced and {waiting} requests wait for it already; "
                "try again in some seconds",
                retryable=True,
            )
        stream = self._table.wait(request)
        if send:
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
            self._connection.send(Cancel(journal.wire_id, choice, str(reason)))
        elif stream.settle():
            self._table.forget(request_id)

    async def stats(self) -> EngineStats:
        """See EngineClient."""
        if self._problem is not None:
            raise unavailable(self._problem)
        self._work.set()
        return await self._connection.stats()

    def drain(self, reason: str) -> None:
        """Take no new requests; those in flight go on."""
        self._closing = self._closing or reason

    async def idle(self) -> None:
        """Return when no request is in flight."""
        while len(self._table):
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """See EngineClient. What is in flight ends with a retryable error. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._closing = reason = "the server is shutting down; send the request again"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._table.fail_all(engine_gone(reason))
        await self._connection.close(reason)
        await self._process.stop()
        self._home.close()

    # -- starting and sending ----------------------------------------------------------------

    async def _start(self, progress: Callable[[str], None]) -> None:
        config = self._config
        process = await start_engine(config, self._home, progress, log_level=self._log_level)
        try:
            self._connection = await EngineConnection.connect(
                process.socket_path, config.digest(), self._deliver, lambda reason: None, owner=True
            )
        except BaseException:
            await process.kill()
            raise
        self._process = process

    def _send(self, stream: Stream) -> None:
        request = self._table.send(stream)
        self._connection.send(Submit(request))
        for choice in stream.journal.ended | set(stream.journal.cancelled):
            reason = stream.journal.cancelled.get(choice, FinishReason.CANCELLED)
            self._connection.send(Cancel(request.request_id, choice, str(reason)))

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
        """A choice that ends by itself clears what its request shares with others."""
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
            _log.exception("the supervision of the engine has failed")
            self._abandon_engine(f"the supervision of the engine has failed: {summary(error)}")

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
                if len(self._table) > self._table.num_sent:  # they wait while a suspect is tried
                    self._expire()
                now, latest = monotonic(), self._process.log.pulse
                # At most two ticks a time: this process may have been stopped itself.
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
        """Sleep while there is nothing to watch for."""
        self._work.clear()
        work = asyncio.ensure_future(self._work.wait())
        try:
            await asyncio.wait((*ends, work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()

    def _work_waits(self) -> bool:
        return self._table.num_sent > 0 or self._connection.unanswered

    # -- recovering --------------------------------------------------------------------------

    async def _recover(self, cause: str) -> None:
        began = monotonic()
        if cause == "crash":  # what it said last may still be on its way
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
        expiring = asyncio.ensure_future(self._expire_meanwhile())
        try:
            if not await self._replace():
                return
        finally:
            expiring.cancel()
        self._problem = None
        self._restarts.started(monotonic())
        seconds = monotonic() - began
        _log.warning("engine process %d goes on after %.1f s", self._process.pid, seconds)
        self._resume_streams()
        self._supervision.on_recovery(Recovery(cause, seconds, in_flight))

    async def _end_process(self, *, kill: bool) -> int:
        """Its exit code. An engine that ends by itself is given a moment to do so."""
        if not kill:
            try:
                async with asyncio.timeout(EXIT_SECONDS):
                    return await self._process.wait()
            except TimeoutError:
                _log.error("engine process %d does not end and is killed", self._process.pid)
        return await self._process.kill()

    def _analyse_crash(self) -> None:
        """Enter who was being computed, convict whom that convicts, and take everybody back."""
        keys = self._process.log.suspects()
        streams = {stream.journal.request.request_id: stream for stream in self._table.streams()}
        present = [i for i, s in streams.items() if request_key(s.journal.wire_id) in keys]
        in_flight = [i for i, s in streams.items() if self._table.is_sent(s)]
        self._docket.retain(streams)
        trial, self._isolated_replay = self._isolated_replay, None
        if trial is None:
            self._docket.death(present, in_flight)
        else:
            suspect = trial.stream.journal.request.request_id
            if suspect in present or self._docket.suspected_in_flight(suspect):
                self._weigh(trial.stream)
            else:
                self._docket.death((), in_flight)
        for request_id, stream in streams.items():
            self._table.recall(stream)
            if stream.settle():
                self._forget(request_id)

    def _weigh(self, stream: Stream) -> None:
        """An engine has ended that computed this suspect alone."""
        request = stream.journal.request
        one_case = self._quarantine.ended_alone(request)
        if (
            not self._docket.record_isolated_crash(request.request_id, stream.journal.tokens)
            and not one_case
        ):
            return
        mark = self._docket.quarantine(request)
        self._quarantine.quarantined(request)
        _log.error(
            "request %s (fingerprint %s) ended two engines while it was computed alone%s, at %d "
            "tokens of prompt and %d of output; it ends with an error",
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
        """End the requests that share what is in quarantine; not those that have got on with it."""
        for stream in self._table.streams():
            journal = stream.journal
            if not journal.tokens and (trait := self._quarantine.holds(journal.request)):
                _log.error("request %s ends with it: %s %s", journal.request.request_id, *trait)
                stream.fail(RequestError(ErrorKind.INTERNAL, shared_verdict(trait)))

    async def _replace(self) -> bool:
        """Start the next engine; False when it is given up."""
        alike = 0  # failures of starts in a row that were the same
        while True:
            delay = self._restarts.delay(monotonic())
            if delay is None:
                self._abandon_engine(
                    f"the engine has ended too often ({self._restarts.bound}); at last it "
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
                _log.error("the next engine %s", end)
                if error.kind in _LASTING or (alike >= STARTS_ALIKE and not _may_mend(error)):
                    self._abandon_engine(f"the next engine could not start: {error.message}")
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
        """See to deadlines for as long as there is no engine to do so."""
        while True:
            self._expire()
            await asyncio.sleep(TICK_SECONDS)

    def _expire(self) -> None:
        """End the requests whose deadline has passed while no engine has them."""
        now = monotonic()
        error = RequestError(ErrorKind.TIMEOUT, "the request's deadline passed", None, True)
        for stream in self._table.streams():
            request = stream.journal.request
            late = request.deadline is not None and request.deadline <= now
            if late and not self._table.is_sent(stream):
                stream.fail(error)
                self._forget(request.request_id)

    def _resume_streams(self) -> None:
        """Give the engine what it is to compute: the next suspect alone, or all."""
        suspects = [s for i in self._docket.suspects() if (s := self._table.get(i)) is not None]
        if suspects:
            stream = suspects[0]
            level = logging.DEBUG if self._replay_logged else logging.WARNING
            _log.log(
                level, "%d requests had a row in two deaths; each is tried alone", len(suspects)
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
        """A suspect has got on alone; it waits until the others have been tried."""
        journal = stream.journal
        self._isolated_replay = None
        self._docket.clear(journal.request.request_id)
        if journal.open_choices:
            self._connection.send(Cancel(journal.wire_id))
            self._table.recall(stream)
            if stream.settle():
                self._forget(journal.request.request_id)
        self._resume_streams()

    def _forget(self, request_id: str) -> None:
        self._table.forget(request_id)
        self._docket.clear(request_id)

    def _abandon_engine(self, why: str) -> None:
        self._problem = why
        _log.critical("the server stops: %s", why)
        self._table.fail_all(engine_gone(why))
        if not self.failed.done():
            self.failed.set_result(unavailable(why))


def resolved(config: EngineConfig, info: EngineInfo) -> EngineConfig:
    """The configuration with what its first engine chose written out, so that the next one, on a
    machine with other memory free, chooses the same."""
    return msgspec.structs.replace(
        config,
        kv_memory=info.num_blocks * info.block_size * info.kv_bytes_per_token,
        recurrent_sequences=info.recurrent_sequences,
        recurrent_snapshots=info.recurrent_snapshots,
        threads=info.threads,
        isa=info.isa if info.backend == "native" else config.isa,
    )


def _may_mend(error: TidemillError) -> bool:
    """Whether a start that failed may succeed once the machine has something free again."""
    return error.kind is ErrorKind.RESOURCE or ending(-signal.SIGKILL) in error.message


def _is_answer(output: ChoiceOutput) -> bool:
    """It ends a choice as was asked: with a vector, or with a prompt that was read."""
    return output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
