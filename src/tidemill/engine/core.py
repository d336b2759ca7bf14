"""EngineCore: the step loop, in a dedicated thread.

Clients put commands into an inbox. Between two steps the loop runs the commands, then plans, runs
and commits a step. Each client gets all its outputs of a step in one message, which is encoded and
sent while the next step computes. Without work the thread sleeps on a condition variable.

A failed step is recomputed in parts, so that only the rows that fail on their own are lost. An
unhandled error in the scheduler stops the engine, which notifies every client.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, cast

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, unsupported
from tidemill.base.log import get_logger, summary
from tidemill.contract.config import EngineConfig
from tidemill.contract.moves import MoveReport
from tidemill.contract.plan import StepPlan, StepResult
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, RequestError
from tidemill.contract.wire import (
    AdapterInfo,
    CacheRequest,
    CacheTold,
    CheckAdapter,
    CheckedAdapter,
    Control,
    Controlled,
    DropAdapter,
    EndProfile,
    EngineInfo,
    EngineStats,
    Fatal,
    Outputs,
    Profiled,
    StartProfile,
    Stats,
)
from tidemill.engine.divide import compute_in_parts, is_out_of_memory
from tidemill.engine.filewatch import FileWatch
from tidemill.engine.flightlog import FlightLog, request_key
from tidemill.engine.idle import IdleMemory
from tidemill.engine.masks import give_masks
from tidemill.engine.memory_control import ASLEEP, MemoryControl
from tidemill.engine.recorder import BEAT_SECONDS, RecordingExecutor
from tidemill.executor.base import Executor, PlanHandle
from tidemill.executor.inproc import OpenedExecutor, open_inproc
from tidemill.grammar.service import GrammarService
from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import root_digest
from tidemill.sched.policy import Limits
from tidemill.sched.scheduler import Scheduler, rejections
from tidemill.sched.sequence import Emission

if TYPE_CHECKING:
    from tidemill.engine.adapters import AdapterGate
    from tidemill.engine.profiling import Profiler
    from tidemill.grammar.phases import ProgramState
    from tidemill.memory.tiers import Tiers
    from tidemill.transfer.link import Link

_log = get_logger(__name__)

# After so many idle seconds the engine verifies the scheduler's invariants.
IDLE_CHECK_SECONDS = 1.0

# The next step is launched after this fraction of the predicted time of the step in flight, less
# twice the measured time of planning (`_lead`).
LAUNCH_FRACTION = 0.95
LEAD_RATE = 0.1

# Blocks of so many steps of prompts are saved in RAM before they are evicted.
AHEAD_STEPS = 2

# Maximum plans in flight: one that computes and one queued after it.
DEPTH = 2

# Running engines, which are stopped before the interpreter exits. At exit Python ends daemon
# threads when they acquire the GIL; a thread that does so inside native code cannot be unwound, and
# the process would abort.
_running: weakref.WeakSet[EngineCore] = weakref.WeakSet()

Message = Outputs | Stats | Controlled | CheckedAdapter | Profiled | CacheTold | Fatal
Sink = Callable[[Message], None]
_Command = Callable[[], list[Emission]]


class EngineCore:
    """The engine of one model.

    Args:
        executor: runs the plans.
        scheduler: makes the plans.
        info: the properties resolved at start.
        grammars: compiles grammars; None: requests for constrained output are rejected.

    Sinks are called from the engine's thread (for `Fatal`, possibly from another) and must not
    block.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        info: EngineInfo,
        grammars: GrammarService | None = None,
    ) -> None:
        self.info = info
        self._grammars = grammars
        self._executor = executor
        self._scheduler = scheduler
        self._sinks: dict[int, Sink] = {}
        self._client_ids = count(1)
        self._inbox: deque[_Command] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._stopped = False
        self._in_flight: deque[tuple[StepPlan, PlanHandle]] = deque()
        self._since = 0.0  # when the oldest of them began to compute
        self._lead = 0.0  # seconds that planning and launching take
        self._idle_memory = IdleMemory(scheduler.memory)
        self._control = MemoryControl(
            scheduler.memory, info, lambda: scheduler.has_requests, self._unload_adapters
        )
        self._pending_outputs: list[Emission] = []  # of the last step, sent during the next
        self._seconds = [0.0, 0.0, 0.0]  # of all steps, of the backend, of the last step
        self._stats = scheduler.stats()
        self._turns = 0
        self._busy = threading.Event()
        self._log: FlightLog | None = None
        self._preparing: set[int] = set()
        self._adapters: AdapterGate | None = None  # made when an adapter is first asked for
        self._profiler: Profiler | None = None  # made when a profile is first asked for
        self._granted: list[Emission] = []  # of requests whose adapters were loaded, or failed to
        self._last_step = -1  # submitted
        self._loading = False
        self._watch = FileWatch(info.files)
        self._permanent_error: TidemillError | None = None
        self._fatal_message: Fatal | None = None
        self._thread = threading.Thread(target=self._run, name="tidemill-engine", daemon=True)

    def start(self) -> EngineCore:
        """Start the step loop; steps wait for weights that are not loaded yet."""
        self._loading = True
        self._executor.when_loaded(self._loaded)
        self._thread.start()
        _running.add(self)
        return self

    # -- called by clients, from any thread --------------------------------------------------

    def connect(self, sink: Sink) -> int:
        """Register a client; returns its id, the namespace of its request ids. If the engine has
        ended, the client receives the `Fatal` message at once."""
        with self._wake:
            client = next(self._client_ids)
            self._sinks[client] = sink
            fatal_message = self._fatal_message
        if fatal_message is not None:
            sink(fatal_message)
        return client

    def disconnect(self, client: int) -> None:
        """Unregister a client: its requests end, and their blocks are free within one step."""

        def command() -> list[Emission]:
            self._sinks.pop(client, None)
            self._scheduler.drop_client(client)
            if self._profiler is not None:
                self._profiler.leave(client)
            return []

        self._post(command)

    def submit(self, client: int, request: EngineRequest, *, remote: bool = False) -> None:
        """Start a request; every one of its choices ends with exactly one terminal output.

        Args:
            client: that is told.
            request: to start.
            remote: of another server: its adapters are those of the same content here.

        Raises:
            TidemillError: kind UNAVAILABLE when the engine has stopped.
        """
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopped:
            # Threads do not survive a fork, so the request would hang.
            raise TidemillError(
                ErrorKind.UNAVAILABLE,
                "the engine runs in the process that loaded it, not in a fork of it; load the "
                "model in the process that uses it (multiprocessing: start method spawn)",
            )

        def command() -> list[Emission]:
            if remote and request.adapters:
                try:
                    return self._begin(client, self._with_adapters_of_here(request))
                except TidemillError as error:
                    return rejections(client, request, error)
            return self._begin(client, request)

        if not self._post(command):
            if self._permanent_error is not None:
                raise self._permanent_error
            raise TidemillError(ErrorKind.UNAVAILABLE, "the engine has stopped", retryable=True)

    def _begin(self, client: int, request: EngineRequest) -> list[Emission]:
        if self._control.asleep:
            return rejections(client, request, ASLEEP)
        self._set_preparing(request, True)
        emissions = self._scheduler.submit(request, client)
        if not request.program.free and not emissions:
            self._compile(client, request)
        else:
            self._set_preparing(request, False)
        if request.adapters and not emissions:
            emissions = self._acquire_adapters(client, request)
        return emissions

    def on_requests(self, take: Callable[[Link], None]) -> None:
        """Call this with each connection of another server that sends requests, on any thread."""
        self._executor.on_requests(take)

    def moved(self, report: MoveReport) -> None:
        """Moves of blocks have ended."""
        self._post(lambda: self._scheduler.moved(report))

    def cancel(
        self, client: int, request_id: str, choice: int | None, reason: FinishReason
    ) -> None:
        """End a request's choice (None: all)."""
        self._post(lambda: self._scheduler.cancel(request_id, choice, reason, client))

    def request_stats(self, client: int, nonce: int) -> None:
        """Send the client a `Stats` message."""

        def command() -> list[Emission]:
            self._send(client, Stats(nonce, self._snapshot()))
            return []

        self._post(command)

    def request_cache(self, client: int, message: CacheRequest) -> None:
        """Send the client a `CacheTold` message."""

        def command() -> list[Emission]:
            memory = self._scheduler.memory
            news = memory.follow().since(message.cursor) if memory.prefix_caching else None
            self._send(client, CacheTold(message.nonce, news))
            return []

        self._post(command)

    def control(self, client: int, message: Control) -> None:
        """Change or report the engine's memory, between two steps; the client receives a
        `Controlled` message."""

        def command() -> list[Emission]:
            self._control.add(message, lambda answer: self._send(client, answer))
            return []

        self._post(command)

    def check_adapter(self, client: int, message: CheckAdapter) -> None:
        """Verify an adapter beside the steps; the client receives a `CheckedAdapter` message."""

        def checked(info: AdapterInfo | None, error: TidemillError | None) -> None:
            told = None
            if error is not None:
                told = RequestError(error.kind, error.message, error.param, error.retryable)
            self._send(client, CheckedAdapter(message.nonce, info, told))

        def command() -> list[Emission]:
            if self._control.asleep:
                checked(None, ASLEEP)
            else:
                self._gate().check(message.adapter, checked)
            return []

        self._post(command)

    def find_adapter(self, client: int, message: CheckAdapter) -> None:
        """Tell another server whether an adapter of a digest is registered here."""

        def command() -> list[Emission]:
            answer = CheckedAdapter(message.nonce)
            try:
                use = self._gate().known.find(message.adapter.digest)
                info = AdapterInfo(digest=use.digest, nbytes=use.nbytes)
                answer = CheckedAdapter(message.nonce, info)
            except TidemillError as error:
                told = RequestError(error.kind, error.message, error.param, error.retryable)
                answer = CheckedAdapter(message.nonce, None, told)
            self._send(client, answer)
            return []

        self._post(command)

    def drop_adapter(self, message: DropAdapter) -> None:
        """Forget an adapter once no request uses it."""

        def command() -> list[Emission]:
            if self._adapters is not None:
                self._adapters.drop(message.digest)
            return []

        self._post(command)

    def profile(self, client: int, message: StartProfile | EndProfile) -> None:
        """Begin or end a profile; the client receives a `Profiled` message."""

        def command() -> list[Emission]:
            def answer(told: Profiled) -> None:
                self._send(client, told)

            if isinstance(message, EndProfile):
                self._profiles().end(client, message, answer)
            else:
                self._profiles().start(client, message, answer)
            return []

        self._post(command)

    def loaded_bytes(self) -> tuple[int, int]:
        """(bytes of weights in memory, bytes of all weights)."""
        total = self.info.weight_bytes
        return total - (self._executor.unloaded_bytes() if self._loading else 0), total

    @property
    def alive(self) -> bool:
        """True if the step loop runs and accepts commands."""
        return self._thread.is_alive() and not self._closing

    def progress(self) -> int:
        """A counter that advances while a step computes."""
        return self._executor.progress()

    def pulse(self) -> int:
        """A counter that advances while the engine makes progress, within a long step as well."""
        return self._turns + self._executor.progress()

    def wait_busy(self) -> None:
        """Block until there is work, or until the engine closes."""
        self._busy.wait()

    def record_in(self, log: FlightLog) -> None:
        """Record in a flight log the requests being computed or admitted. Call before `start`."""
        self._log = log
        self._executor = RecordingExecutor(self._executor, log)

    def close(self) -> None:
        """Stop after the current step; open choices end as cancelled."""
        with self._wake:
            self._closing = True
            self._busy.set()
            self._wake.notify()
        if self._loading:
            self._executor.stop_loading()  # the current step may be waiting for weights
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _loaded(self, error: TidemillError | None) -> None:
        """Called when the weights are loaded; on an error the engine ends."""
        self._loading = False
        if error is not None:
            message = f"the model cannot be loaded: {error.message}"
            self._permanent_error = TidemillError(error.kind, message, param=error.param)
            self._post(self._abandon_engine)

    def _abandon_engine(self) -> list[Emission]:
        assert self._permanent_error is not None
        raise self._permanent_error

    def _post(self, command: _Command) -> bool:
        """Put a command into the inbox; False if the engine has stopped."""
        with self._wake:
            if not self._stopped:
                self._inbox.append(command)
                self._busy.set()
                self._wake.notify()
            return not self._stopped

    # -- the engine's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            emissions = [e for command in self._stop() for e in command()]
            emissions = self._pending_outputs + emissions
            self._deliver(emissions + self._end_all(FinishReason.CANCELLED, None))
        except Exception as error:
            self._stop()
            if self._permanent_error is not None:
                self._fatal(self._permanent_error.message)
            else:
                _log.exception("unhandled engine error; the engine stops")
                self._fatal(f"unhandled engine error: {summary(error)}")
        finally:
            if self._adapters is not None:
                self._adapters.close()
            self._executor.close()
            self._watch.close()
            if self._grammars is not None:
                self._grammars.close()

    def _stop(self) -> list[_Command]:
        """Stop accepting commands; returns those still in the inbox."""
        with self._wake:
            self._closing = self._stopped = True
            commands = list(self._inbox)
            self._inbox.clear()
        return commands

    def _turn(self) -> bool:
        """One iteration: run the inbox, launch a step, commit the oldest one; False when closing.

        While the step computes, the outputs of the previous one are sent and the next is planned.
        """
        commands = self._wait()
        if commands is None:
            return False
        self._turns += 1
        pending_outputs, self._pending_outputs = self._pending_outputs, []
        emissions = pending_outputs + self._run_commands(commands)
        if not self._in_flight:
            if self._control.due:
                self._control.run(self._executor)
            emissions += self._launch()
        self._deliver(emissions)
        self._launch_next()
        emissions = self._commit_oldest()
        if self._adapters is not None:
            emissions += self._settle_adapters(self._adapters)
        if self._scheduler.has_work:
            self._pending_outputs = emissions
        else:
            self._deliver(emissions)
        return True

    def _wait(self) -> list[_Command] | None:
        """The commands in the inbox, None when closing; sleeps without commands and work."""
        if not (self._scheduler.has_work or self._in_flight or self._control.due):
            begun = monotonic()
            self._idle()
            if self._profiler is not None:
                self._profiler.idled(monotonic() - begun)
        with self._wake:
            if self._closing:
                return None
            commands = list(self._inbox)
            self._inbox.clear()
            return commands

    def _idle(self) -> None:
        """Sleep until there is a command, and on the way do what is for idle times."""
        due = self._idle_memory.due()
        if not self._rest(monotonic() + IDLE_CHECK_SECONDS):
            return
        self._scheduler.check()
        if self._grammars is not None and not self._control.asleep:
            self._grammars.warm(self.info.weight_bytes)
        while self._rest(due, asleep=True):
            self._idle_memory.give_back(self._executor)
            due = self._idle_memory.due()

    def _rest(self, until: float, *, asleep: bool = False) -> bool:
        """Wait for a command until then; False when there is one, or the engine closes.

        Args:
            until: of `monotonic`.
            asleep: nobody needs to see that this thread gets on.
        """
        with self._wake:
            while not (self._inbox or self._closing):
                left = min(until - monotonic(), threading.TIMEOUT_MAX)
                if left <= 0:
                    return True
                if self._preparing or (self._adapters is not None and self._adapters.loading):
                    # Compiling a program or loading an adapter may take long; it counts as
                    # progress, not as a stall.
                    self._turns += 1
                    left = min(left, BEAT_SECONDS)
                elif asleep:
                    self._busy.clear()
                self._wake.wait(left)
        return False

    def _run_commands(self, commands: list[_Command]) -> list[Emission]:
        emissions: list[Emission] = []
        for command in commands:
            emissions += command()
        return emissions + self._scheduler.expire()

    def _launch(self) -> list[Emission]:
        """Plan and launch a step, if there is work; returns the outputs of a failed launch."""
        plan = self._scheduler.plan()
        if plan is not None:
            if not self._in_flight:
                self._since = monotonic()
            try:
                self._in_flight.append((plan, self._submit(plan)))
            except Exception as error:
                return self._failed(error, plan)
        elif not self._in_flight and self._scheduler.has_work:
            if ended := self._scheduler.end_stuck():
                return ended
            raise RuntimeError("the scheduler has work but planned no rows")
        return []

    def _launch_next(self) -> None:
        """Launch the next step shortly before the current one should end, if its plan does not
        depend on the current step's results.

        It is not launched sooner, so that requests that arrive meanwhile are in the next step.
        While a change of the memory waits for a moment without steps, none is launched.
        """
        if self._control.due:
            return
        if not self._in_flight or (seconds := self._scheduler.overlap_seconds) is None:
            return
        due = self._since + LAUNCH_FRACTION * seconds - 2 * self._lead
        if self._in_flight[0][1].done(max(0.0, due - monotonic())):
            return
        begun = monotonic()
        with self._wake:
            commands = list(self._inbox)
            self._inbox.clear()
        emissions = self._run_commands(commands)
        if not self._control.due:
            emissions += self._launch()
        self._lead += LEAD_RATE * (monotonic() - begun - self._lead)
        self._deliver(emissions)

    def _commit_oldest(self) -> list[Emission]:
        """Wait for the oldest step in flight, if any, and commit it."""
        if not self._in_flight:
            return []
        plan, handle = self._in_flight[0]
        try:
            result = handle.result()
        except Exception as error:
            return self._failed(error)
        self._in_flight.popleft()
        now = monotonic()
        seconds, self._since = now - self._since, now
        emissions = self._commit(plan, result)
        if not self._in_flight:  # scheduling time counts for the step
            seconds += monotonic() - now
        self._time(seconds, result)
        return emissions

    def _commit(self, plan: StepPlan, result: StepResult) -> list[Emission]:
        """Commit a result. Raises TidemillError MODEL_FILE if mapped weights were overwritten."""
        self._check_files()
        return self._scheduler.commit(plan, result)

    def _check_files(self, *, text: bool = False) -> None:
        try:
            self._watch.check(text=text)
        except TidemillError as error:
            self._permanent_error = error
            raise

    def _time(self, seconds: float, result: StepResult) -> None:
        self._seconds[0] += seconds
        self._seconds[1] += result.timings.forward + result.timings.sampling
        self._seconds[2] = seconds

    def _submit(self, plan: StepPlan) -> PlanHandle:
        self._idle_memory.computing()
        self._last_step = plan.step_id
        handle = self._executor.submit(plan)
        self._give_masks(plan, handle)
        return handle

    def _give_masks(self, plan: StepPlan, handle: PlanHandle) -> None:
        """Compute the masks of constrained rows while their step computes."""
        waiting = [i for i, row in enumerate(plan.rows) if row.mask_announced]
        if not waiting:
            return
        assert self._grammars is not None
        begun = monotonic()
        states = {i: self._scheduler.constraint(plan.rows[i].seq_id) for i in waiting}
        give_masks(
            plan, handle, cast("dict[int, ProgramState]", states), self._grammars,
            self.info.vocab_size,
        )  # fmt: skip
        if self._scheduler.explains:
            self._scheduler.note_masks({plan.rows[i].seq_id for i in waiting}, monotonic() - begun)

    def _failed(self, error: Exception, unsent: StepPlan | None = None) -> list[Emission]:
        """Recover from a failed step: end the rows that cause the failure, compute the others.

        Args:
            error: raised by the executor.
            unsent: the plan whose submission failed; None if a submitted step failed.
        """
        if self._permanent_error is not None:
            raise self._permanent_error
        emissions: list[Emission] = []
        if unsent is not None:
            self._executor.rollback(unsent)
            while self._in_flight:  # submitted earlier, and may have succeeded
                plan, handle = self._in_flight[0]
                try:
                    result = handle.result()
                except Exception as earlier:
                    self._scheduler.rollback(unsent)
                    return emissions + self._failed(earlier)
                self._in_flight.popleft()
                emissions += self._commit(plan, result)
            culprit = unsent
        else:
            culprit = self._rollback_all()
        _log.error(
            "step %d failed with %d rows; it is recomputed in parts",
            culprit.step_id,
            len(culprit.rows),
            exc_info=error,
        )
        if isinstance(error, TidemillError) and error.kind is ErrorKind.UNAVAILABLE:
            self._scheduler.rollback(culprit)
            told = RequestError(error.kind, error.message, None, True)
            return emissions + self._scheduler.fail(culprit, told)
        if is_out_of_memory(error) and culprit.rows[-1].layers is not None:
            # A chunk computed by layers cannot be divided. The next chunk is smaller.
            self._scheduler.rollback(culprit)
            self._scheduler.shrink(culprit)
            return emissions
        result = compute_in_parts(culprit, error, self._submit, self._executor.rollback)
        failed = {row.seq_id: row.error for row in result.rows if row.error is not None}
        for seq in self._scheduler.sequences():
            if seq.seq_id in failed:
                request_id, why = seq.owner.request.request_id, failed[seq.seq_id]
                _log.error("request %s failed in its step: %s", request_id, why)
        emissions += self._commit(culprit, result)
        if is_out_of_memory(error):
            self._scheduler.shrink(culprit)
        return emissions

    def _rollback_all(self) -> StepPlan:
        """Roll back all plans in flight, but the oldest, which failed, in the executor only.

        Returns:
            The oldest plan; the scheduler still has it in flight.
        """
        plans = [plan for plan, _ in self._in_flight]
        for _, handle in list(self._in_flight):
            try:
                handle.result()
            except Exception:  # nosec B112
                continue  # rolled back in any case
        self._in_flight.clear()
        for plan in reversed(plans[1:]):
            self._executor.rollback(plan)
            self._scheduler.rollback(plan)
        self._executor.rollback(plans[0])
        return plans[0]

    def _compile(self, client: int, request: EngineRequest) -> None:
        """Compile a request's program concurrently with steps; then the request is queued."""

        def done(states: list[ProgramState], error: TidemillError | None) -> None:
            def command() -> list[Emission]:
                self._set_preparing(request, False)
                if not states and error is None:  # the request has ended meanwhile
                    return []
                return self._scheduler.release(client, request.request_id, states, error)

            self._post(command)

        self._check_files(text=True)  # the first compile reads the tokenizer's files
        if self._grammars is None:
            done([], unsupported("program", "constrained output needs a tokenizer vocabulary"))
            return
        ends = sorted(self._scheduler.end_tokens(request))
        known = self._grammars.compile_later(
            request.program,
            ends,
            request.sampling.width,
            done,
            tenant=request.tenant,
            wanted=lambda: self._scheduler.is_waiting_for_program(client, request.request_id),
        )
        if request.explain:
            self._scheduler.note_grammar(client, request.request_id, known=known)

    def _post_call(self, call: Callable[[], None]) -> None:
        """Run a call in the engine's thread, and what it grants."""

        def command() -> list[Emission]:
            call()
            found, self._granted = self._granted, []
            return found

        self._post(command)

    def _gate(self) -> AdapterGate:
        if self._adapters is None:
            from tidemill.engine.adapters import AdapterGate

            self._adapters = AdapterGate(self._executor, self._post_call)
        return self._adapters

    def _profiles(self) -> Profiler:
        if self._profiler is None:
            from tidemill.engine.profiling import Profiler

            def use(executor: Executor) -> None:
                self._executor = executor

            self._profiler = Profiler(
                self._executor, use, lambda: self._scheduler.has_work, self._post_call
            )
        return self._profiler

    def _with_adapters_of_here(self, request: EngineRequest) -> EngineRequest:
        adapters = self._gate().known.local(request.adapters)
        return msgspec.structs.replace(request, adapters=adapters)

    def _acquire_adapters(self, client: int, request: EngineRequest) -> list[Emission]:
        """Queue a request once its adapters are in memory; until then it waits in the gate."""
        request_id, scheduler = request.request_id, self._scheduler

        def granted(slot: int, error: TidemillError | None) -> None:
            self._granted += scheduler.adapters_loaded(client, request_id, slot, error)

        self._gate().acquire(
            request.adapters, granted, lambda: scheduler.awaits_adapters(client, request_id)
        )
        found, self._granted = self._granted, []
        return found

    def _settle_adapters(self, gate: AdapterGate) -> list[Emission]:
        """Give back the adapters of ended requests, once no step in flight can name them."""
        for owner in self._scheduler.ended_with_adapters:
            if owner.adapter_slot:
                gate.release(owner.request.adapters, self._last_step)
        self._scheduler.ended_with_adapters.clear()
        gate.settle(self._in_flight[0][0].step_id if self._in_flight else None)
        found, self._granted = self._granted, []
        return found

    def _unload_adapters(self) -> None:
        """Give back the adapters in memory. No request is open, no step in flight."""
        if self._adapters is not None:
            self._settle_adapters(self._adapters)
            self._adapters.clear()

    def _set_preparing(self, request: EngineRequest, preparing: bool) -> None:
        """Record whether a request is being admitted or its program compiled, outside of steps."""
        key = request_key(request.request_id)
        (self._preparing.add if preparing else self._preparing.discard)(key)
        if self._log is not None:
            self._log.set_preparing(self._preparing)

    def _deliver(self, emissions: list[Emission]) -> None:
        """Send each client its outputs in one message."""
        if not emissions:
            return
        stats = self._snapshot()
        by_client: dict[int, list[ChoiceOutput]] = {}
        for client, output in emissions:
            by_client.setdefault(client, []).append(output)
        for client, outputs in by_client.items():
            self._send(client, Outputs(tuple(outputs), stats))

    def _send(self, client: int, message: Message) -> None:
        sink = self._sinks.get(client)
        if sink is None:
            return
        try:
            sink(message)
        except Exception:
            # An unreachable client must not affect the others.
            _log.exception("client %d is unreachable and is dropped", client)
            self._sinks.pop(client, None)
            self._scheduler.drop_client(client)

    def _snapshot(self) -> EngineStats:
        total, compute, last = self._seconds
        self._stats = self._scheduler.stats(
            step_seconds=total, compute_seconds=compute, last_step_seconds=last
        )
        if self._loading:
            self._stats = msgspec.structs.replace(self._stats, loading=True)
        if self._grammars is not None and self._grammars.used:
            self._stats = msgspec.structs.replace(self._stats, **self._grammars.figures())
        return self._stats

    def _end_all(self, reason: FinishReason, error: RequestError | None) -> list[Emission]:
        for plan, handle in reversed(self._in_flight):
            try:
                handle.result()
            except Exception:
                _log.warning("step %d failed while closing", plan.step_id)
            self._executor.rollback(plan)
            self._scheduler.rollback(plan)
        self._in_flight.clear()
        return self._scheduler.end_all(reason, error)

    def _fatal(self, message: str) -> None:
        told = None
        if (lasting := self._permanent_error) is not None:
            told = RequestError(lasting.kind, lasting.message, lasting.param, lasting.retryable)
            _log.error("the engine stops: %s", message)
        with self._wake:
            fatal_message = self._fatal_message = Fatal(message, told)
            sinks = list(self._sinks.values())
        for sink in sinks:
            try:
                sink(fatal_message)
            except Exception:
                _log.exception("a client could not be notified that the engine stops")


def make_scheduler(
    opened: OpenedExecutor,
    config: EngineConfig,
    *,
    depth: int = DEPTH,
    jump_ahead: bool = True,
    always_draft: bool = False,
    clock: Callable[[], float] = monotonic,
) -> Scheduler:
    """The scheduler for an opened executor; see `make_core`. Its time is `clock`'s alone."""
    info = opened.info
    memory = KVMemory(
        (info.reserved_blocks or info.num_blocks,) * opened.num_groups,
        info.block_size,
        prefix_caching=info.prefix_caching,
        recurrent=opened.recurrent,
        snapshots=opened.snapshots,
    )
    if info.reserved_blocks > info.num_blocks:
        memory.resize(info.num_blocks)
    limits = Limits(
        max_num_seqs=info.max_num_seqs,
        max_step_tokens=info.max_step_tokens,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        depth=1 if opened.recurrent else depth,
        jump_ahead=jump_ahead,
        generates=info.generates,
        whole_prompts=info.whole_prompts,
        max_itl=None if config.max_itl_ms is None else config.max_itl_ms / 1000,
        layers=opened.sliced_layers,
        speculation=info.speculation,
        drafters=info.drafters,
        draft_states=info.recurrent_drafts,
        lookup_answers=config.lookup_answers is not None,
        always_draft=always_draft,
        pipelined=opened.pipelined,
    )
    return Scheduler(
        memory,
        limits,
        info.eos_token_ids,
        weights_digest=opened.identity,
        kv_dtype=info.kv_dtype,
        tiers=_tiers_of(opened, config, memory) if opened.tiers and memory.prefix_caching else None,
        clock=clock,
    )


def _tiers_of(opened: OpenedExecutor, config: EngineConfig, memory: KVMemory) -> Tiers:
    from tidemill.memory.tiers import Tiers  # only with a tier

    executor, info = opened.executor, opened.info
    assert opened.record_sizes is not None
    return Tiers(
        memory,
        opened.tiers,
        opened.record_sizes,
        AHEAD_STEPS * memory.blocks_for(info.max_step_tokens),
        executor.tier_of,
        executor.move,
        executor.announce if opened.listens else None,
        executor.peer_loads if config.kv_peers and config.role != "prefill" else None,
    )


def make_core(
    opened: OpenedExecutor,
    config: EngineConfig,
    *,
    depth: int = DEPTH,
    jump_ahead: bool = True,
    always_draft: bool = False,
) -> EngineCore:
    """The core for an opened executor.

    Args:
        opened: the executor.
        config: the engine's configuration.
        depth: plans that may be in flight (1 or 2). A recurrent model always has 1: of a sequence's
            two states, one is the state before the row in flight, which a rollback restores.
        jump_ahead, always_draft: see `sched.policy.Limits`.
    """
    scheduler = make_scheduler(
        opened, config, depth=depth, jump_ahead=jump_ahead, always_draft=always_draft
    )
    info, grammars = opened.info, None
    if opened.tokenizer is not None:
        grammars = GrammarService(opened.tokenizer, info.vocab_size, info.eos_token_ids)
    core = EngineCore(opened.executor, scheduler, info, grammars)
    if opened.tiers:
        opened.executor.report_moves(core.moved)
    if opened.listens and config.role != "decode":
        from tidemill.engine.prefills import PrefillService  # few are asked

        def root(salt: str) -> bytes:
            return root_digest(salt=salt, weights=opened.identity, kv_dtype=info.kv_dtype)

        service = PrefillService(core, root, scheduler.peer_load)
        opened.executor.serve_prefills(service)
    return core


def open_core(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda line: None,
    log: FlightLog | None = None,
    lost: Callable[[str], None] | None = None,
) -> EngineCore:
    """Load a model into this process and start its engine.

    Args:
        config: the engine's configuration.
        progress: called with a line for each stage of loading.
        log: the flight log for a supervisor.
        lost: see `executor.inproc.open_inproc`.

    Raises:
        TidemillError: the model or the configuration cannot be used.
    """
    core = make_core(open_inproc(config, progress, lost), config)
    if log is not None:
        core.record_in(log)
    return core.start()


@atexit.register
def _close_all() -> None:
    for core in list(_running):
        if core.alive:  # False in a forked child of the process that loaded it
            core.close()
