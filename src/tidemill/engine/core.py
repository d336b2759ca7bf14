"""EngineCore: the step loop, in a thread of its own.

Clients put commands into an inbox; the loop takes them between two steps, plans, runs and commits a
step, and hands each client all its outputs of the step in one message, which is made and sent while
the next step computes. When nothing runs the thread
sleeps on a condition. A failed step is computed again in parts, and costs the rows that fail alone;
a defect in the books themselves stops the engine, which says so to every client.
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
import numpy as np

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, unsupported
from tidemill.base.log import get_logger, summary
from tidemill.contract.config import EngineConfig
from tidemill.contract.plan import StepPlan, StepResult
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, RequestError
from tidemill.contract.wire import EngineInfo, EngineStats, Fatal, Outputs, Stats
from tidemill.engine.divide import compute_in_parts, lacks_memory
from tidemill.engine.filewatch import FileWatch
from tidemill.engine.flightlog import FlightLog, request_key
from tidemill.engine.recorder import BEAT_SECONDS, RecordingExecutor
from tidemill.executor.base import Executor, PlanHandle
from tidemill.executor.inproc import OpenedExecutor, open_inproc
from tidemill.grammar.service import GrammarService
from tidemill.memory.lease import KVMemory
from tidemill.sched.policy import Limits
from tidemill.sched.scheduler import Scheduler
from tidemill.sched.sequence import Emission

if TYPE_CHECKING:
    from tidemill.grammar.phases import ProgramState

_log = get_logger(__name__)

# An idle engine verifies its books once it has been idle for so many seconds.
IDLE_CHECK_SECONDS = 1.0

# The next step is launched when this share of the predicted time of the one that computes has
# passed, less what planning takes twice over.
AHEAD_SHARE = 0.95
LEAD_RATE = 0.1

# Plans that may be outstanding: one that computes and one behind it.
DEPTH = 2

# Running engines. When Python ends, it ends daemon threads where they next want the GIL, and one
# that waits for it in native code cannot be unwound: the process would abort. So all are stopped
# before that.
_running: weakref.WeakSet[EngineCore] = weakref.WeakSet()

Message = Outputs | Stats | Fatal
Sink = Callable[[Message], None]
_Command = Callable[[], list[Emission]]


class EngineCore:
    """One model's engine.

    Args:
        executor: runs the plans.
        scheduler: makes them.
        info: what was resolved at start.
        grammars: for constrained output; None: requests that ask for it are refused.

    Sinks are called from the engine's thread (or, for `Fatal`, from whichever found out) and must
    not block.
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
        self._flying: deque[tuple[StepPlan, PlanHandle]] = deque()
        self._since = 0.0  # when the oldest of them began to compute
        self._lead = 0.0  # seconds that planning and launching take
        self._pending_outputs: list[Emission] = []  # of the last step, sent during the next
        self._seconds = [0.0, 0.0, 0.0]  # of all steps, of the backend, of the last step
        self._stats = scheduler.stats()
        self._turns = 0
        self._busy = threading.Event()
        self._log: FlightLog | None = None
        self._beside: set[int] = set()
        self._loading = False
        self._watch = FileWatch(info.files)
        self._unloadable: TidemillError | None = None
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
        """A client comes; returns its id, the namespace of its request ids. One that comes too late
        is told at once why the engine has ended."""
        with self._wake:
            client = next(self._client_ids)
            self._sinks[client] = sink
            fatal_message = self._fatal_message
        if fatal_message is not None:
            sink(fatal_message)
        return client

    def disconnect(self, client: int) -> None:
        """A client is gone: everything it had ends, its blocks are free within one step."""

        def command() -> list[Emission]:
            self._sinks.pop(client, None)
            self._scheduler.drop_client(client)
            return []

        self._post(command)

    def submit(self, client: int, request: EngineRequest) -> None:
        """Start a request; every one of its choices ends with exactly one terminal output.

        Raises:
            TidemillError: kind UNAVAILABLE when the engine has stopped.
        """
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopped:
            # Threads do not survive a fork; whoever waits for this one waits for ever.
            raise TidemillError(
                ErrorKind.UNAVAILABLE,
                "the engine runs in the process that loaded it, not in a fork of it; load the "
                "model in the process that uses it (multiprocessing: start method spawn)",
            )

        def command() -> list[Emission]:
            self._set_beside(request, True)
            emissions = self._scheduler.submit(request, client)
            if not request.program.free and not emissions:
                self._compile(client, request)
            else:
                self._set_beside(request, False)
            return emissions

        if not self._post(command):
            if self._unloadable is not None:
                raise self._unloadable
            raise TidemillError(ErrorKind.UNAVAILABLE, "the engine has stopped", retryable=True)

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

    @property
    def alive(self) -> bool:
        """The step loop runs and will take commands."""
        return self._thread.is_alive() and not self._closing

    def progress(self) -> int:
        """A counter that advances while a step computes."""
        return self._executor.progress()

    def pulse(self) -> int:
        """A number that changes while the engine gets on with its work, be it in a long step."""
        return self._turns + self._executor.progress()

    def wait_busy(self) -> None:
        """Return once there is something to do (or when closing)."""
        self._busy.wait()

    def record_in(self, log: FlightLog) -> None:
        """Note in a flight log whose rows are computed and which request is taken in; before
        `start`."""
        self._log = log
        self._executor = RecordingExecutor(self._executor, log)

    def close(self) -> None:
        """Stop after the step that runs; open choices end as cancelled."""
        with self._wake:
            self._closing = True
            self._busy.set()
            self._wake.notify()
        if self._loading:
            self._executor.stop_loading()  # what the step that runs may be waiting for
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _loaded(self, error: TidemillError | None) -> None:
        """The weights are there; or they never will be, and the engine ends."""
        self._loading = False
        if error is not None:
            message = f"the model cannot be loaded: {error.message}"
            self._unloadable = TidemillError(error.kind, message, param=error.param)
            self._post(self._abandon_engine)

    def _abandon_engine(self) -> list[Emission]:
        assert self._unloadable is not None
        raise self._unloadable

    def _post(self, command: _Command) -> bool:
        """Put a command into the inbox; False when the engine has stopped."""
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
            if self._unloadable is not None:
                self._fatal(self._unloadable.message)
            else:
                _log.exception("the engine stops: its books do not add up")
                self._fatal(f"the engine met a defect of its own and stops: {summary(error)}")
        finally:
            self._executor.close()
            self._watch.close()
            if self._grammars is not None:
                self._grammars.close()

    def _stop(self) -> list[_Command]:
        """Take no more commands; returns those that came just before."""
        with self._wake:
            self._closing = self._stopped = True
            commands = list(self._inbox)
            self._inbox.clear()
        return commands

    def _turn(self) -> bool:
        """Take the inbox, see that a step computes, and take its results in; False when closing.

        While it computes, what the step before said is told and the next one is prepared.
        """
        commands = self._wait()
        if commands is None:
            return False
        self._turns += 1
        pending_outputs, self._pending_outputs = self._pending_outputs, []
        emissions = pending_outputs + self._run_commands(commands)
        if not self._flying:
            emissions += self._launch()
        self._deliver(emissions)
        self._launch_ahead()
        emissions = self._take_oldest()
        if self._scheduler.has_work:
            self._pending_outputs = emissions
        else:
            self._deliver(emissions)
        return True

    def _wait(self) -> list[_Command] | None:
        """The commands there are; sleeps while there is neither a command nor work."""
        with self._wake:
            if not (self._inbox or self._closing or self._scheduler.has_work or self._flying):
                self._rest(IDLE_CHECK_SECONDS)
                if not (self._inbox or self._closing):
                    self._scheduler.check()
                    if self._grammars is not None:
                        self._grammars.warm(self.info.weight_bytes)
                    while not (self._inbox or self._closing):
                        self._rest()
            if self._closing:
                return None
            commands = list(self._inbox)
            self._inbox.clear()
            return commands

    def _rest(self, seconds: float | None = None) -> None:
        """Wait for a command, for a while or for good; called with the lock held."""
        if self._beside:
            # Programs are being compiled: that may take its time, and is no standstill.
            self._turns += 1
            self._wake.wait(BEAT_SECONDS)
            return
        if seconds is None:
            self._busy.clear()
        self._wake.wait(seconds)

    def _run_commands(self, commands: list[_Command]) -> list[Emission]:
        emissions: list[Emission] = []
        for command in commands:
            emissions += command()
        return emissions + self._scheduler.expire(monotonic())

    def _launch(self) -> list[Emission]:
        """Plan and launch a step, if there is one; returns what a failure at that has to tell."""
        plan = self._scheduler.plan()
        if plan is not None:
            if not self._flying:
                self._since = monotonic()
            try:
                self._flying.append((plan, self._submit(plan)))
            except Exception as error:
                return self._failed(error, plan)
        elif not self._flying and self._scheduler.has_work:
            raise RuntimeError("work is left and the scheduler plans nothing")
        return []

    def _launch_ahead(self) -> None:
        """Shortly before the step that computes should end, launch the next one, where its plan
        does not depend on what this one gives.

        Not sooner: what comes meanwhile is to have its row in the very next step.
        """
        if not self._flying or (seconds := self._scheduler.overlap_seconds) is None:
            return
        due = self._since + AHEAD_SHARE * seconds - 2 * self._lead
        if self._flying[0][1].done(max(0.0, due - monotonic())):
            return
        begun = monotonic()
        with self._wake:
            commands = list(self._inbox)
            self._inbox.clear()
        emissions = self._run_commands(commands) + self._launch()
        self._lead += LEAD_RATE * (monotonic() - begun - self._lead)
        self._deliver(emissions)

    def _take_oldest(self) -> list[Emission]:
        """Wait for the oldest step, if there is one, and commit it."""
        if not self._flying:
            return []
        plan, handle = self._flying[0]
        try:
            result = handle.result()
        except Exception as error:
            return self._failed(error)
        self._flying.popleft()
        now = monotonic()
        seconds, self._since = now - self._since, now
        emissions = self._commit(plan, result)
        if not self._flying:  # the books' time is the step's
            seconds += monotonic() - now
        self._time(seconds, result)
        return emissions

    def _commit(self, plan: StepPlan, result: StepResult) -> list[Emission]:
        """Take a result in, unless the weights it was computed from have been written over."""
        self._check_files()
        return self._scheduler.commit(plan, result)

    def _check_files(self, *, text: bool = False) -> None:
        try:
            self._watch.check(text=text)
        except TidemillError as error:
            self._unloadable = error
            raise

    def _time(self, seconds: float, result: StepResult) -> None:
        self._seconds[0] += seconds
        self._seconds[1] += result.timings.forward + result.timings.sampling
        self._seconds[2] = seconds

    def _submit(self, plan: StepPlan) -> PlanHandle:
        handle = self._executor.submit(plan)
        self._give_masks(plan, handle)
        return handle

    def _give_masks(self, plan: StepPlan, handle: PlanHandle) -> None:
        """Masks for the rows that wait for one, while their step computes."""
        waiting = [i for i, row in enumerate(plan.rows) if row.mask_announced]
        if not waiting:
            return
        assert self._grammars is not None
        states = [self._scheduler.constraint(plan.rows[i].seq_id) for i in waiting]
        try:
            masks = self._grammars.masks([cast("ProgramState", state) for state in states])
        except Exception:
            # The step waits for them; rows without any token allowed end with an error.
            _log.exception("the masks of step %d could not be computed", plan.step_id)
            masks = [np.zeros(-(-self.info.vocab_size // 8), np.uint8) for _ in states]
        for i, mask in zip(waiting, masks, strict=True):
            handle.set_mask(i, 0, mask)

    def _failed(self, error: Exception, unsent: StepPlan | None = None) -> list[Emission]:
        """A step failed: find the rows that make it fail, and go on with the others.

        Args:
            error: what the executor raised.
            unsent: the plan it did not take, when it failed at that.
        """
        if self._unloadable is not None:
            raise self._unloadable
        emissions: list[Emission] = []
        if unsent is not None:
            self._executor.rollback(unsent)
            while self._flying:  # submitted before it, and perhaps well
                plan, handle = self._flying[0]
                try:
                    result = handle.result()
                except Exception as earlier:
                    self._scheduler.rollback(unsent)
                    return emissions + self._failed(earlier)
                self._flying.popleft()
                emissions += self._commit(plan, result)
            culprit = unsent
        else:
            culprit = self._rollback_all()
        _log.error(
            "step %d failed with %d rows; it is computed again in parts",
            culprit.step_id,
            len(culprit.rows),
            exc_info=error,
        )
        if isinstance(error, TidemillError) and error.kind is ErrorKind.UNAVAILABLE:
            self._scheduler.rollback(culprit)
            told = RequestError(error.kind, error.message, None, True)
            return emissions + self._scheduler.fail(culprit, told)
        if lacks_memory(error) and culprit.rows[-1].layers is not None:
            # Some layers of a chunk cannot be cut further; what comes next is a smaller chunk.
            self._scheduler.rollback(culprit)
            self._scheduler.shrink(culprit)
            return emissions
        result = compute_in_parts(culprit, error, self._submit, self._executor.rollback)
        failed = {row.seq_id: row.error for row in result.rows if row.error is not None}
        for seq in self._scheduler.sequences():
            if seq.seq_id in failed:
                request_id, why = seq.owner.request.request_id, failed[seq.seq_id]
                _log.error("request %s ends with its step's error: %s", request_id, why)
        emissions += self._commit(culprit, result)
        if lacks_memory(error):
            self._scheduler.shrink(culprit)
        return emissions

    def _rollback_all(self) -> StepPlan:
        """Take back what is outstanding; of the oldest plan, which failed, only what the executor
        did: the scheduler's part is returned."""
        plans = [plan for plan, _ in self._flying]
        for _, handle in list(self._flying):
            try:
                handle.result()
            except Exception:  # nosec B112
                continue  # taken back whatever became of it
        self._flying.clear()
        for plan in reversed(plans[1:]):
            self._executor.rollback(plan)
            self._scheduler.rollback(plan)
        self._executor.rollback(plans[0])
        return plans[0]

    def _compile(self, client: int, request: EngineRequest) -> None:
        """Have a request's program compiled beside the steps; it is queued once that is done."""

        def done(states: list[ProgramState], error: TidemillError | None) -> None:
            def command() -> list[Emission]:
                self._set_beside(request, False)
                if not states and error is None:  # nobody waits for it any more
                    return []
                return self._scheduler.release(client, request.request_id, states, error)

            self._post(command)

        self._check_files(text=True)  # what its program is compiled with is read at the first one
        if self._grammars is None:
            done([], unsupported("program", "this engine has no vocabulary to constrain output by"))
            return
        ends = sorted(self._scheduler.end_tokens(request))
        self._grammars.compile_later(
            request.program,
            ends,
            request.sampling.n,
            done,
            tenant=request.tenant,
            wanted=lambda: self._scheduler.is_waiting_for_program(client, request.request_id),
        )

    def _set_beside(self, request: EngineRequest, beside: bool) -> None:
        """Whether a request is being taken in, or its program compiled: beside the steps."""
        key = request_key(request.request_id)
        (self._beside.add if beside else self._beside.discard)(key)
        if self._log is not None:
            self._log.beside(self._beside)

    def _deliver(self, emissions: list[Emission]) -> None:
        """One message per client with all that is for it."""
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
            # A client that cannot be told is gone; it must not take the others with it.
            _log.exception("client %d cannot be reached and is dropped", client)
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
        for plan, handle in reversed(self._flying):
            try:
                handle.result()
            except Exception:
                _log.warning("step %d failed while closing", plan.step_id)
            self._executor.rollback(plan)
            self._scheduler.rollback(plan)
        self._flying.clear()
        return self._scheduler.end_all(reason, error)

    def _fatal(self, message: str) -> None:
        told = None
        if (lasting := self._unloadable) is not None:
            told = RequestError(lasting.kind, lasting.message, lasting.param, lasting.retryable)
            _log.error("the engine stops: %s", message)
        with self._wake:
            fatal_message = self._fatal_message = Fatal(message, told)
            sinks = list(self._sinks.values())
        for sink in sinks:
            try:
                sink(fatal_message)
            except Exception:
                _log.exception("a client could not be told that the engine stops")


def make_core(
    opened: OpenedExecutor, config: EngineConfig, *, depth: int = DEPTH, jump_ahead: bool = True
) -> EngineCore:
    """The core over an executor that is ready.

    Args:
        opened: the executor.
        config: what it serves.
        depth: plans that may be outstanding (1 or 2); one for a recurrent model: of a sequence's
            two states one is what its outstanding row began with, for when that fails.
        jump_ahead: see `sched.policy.Limits`.
    """
    info = opened.info
    memory = KVMemory(
        (info.num_blocks,) * opened.num_groups,
        info.block_size,
        prefix_caching=info.prefix_caching,
        recurrent=opened.recurrent,
        snapshots=opened.snapshots,
    )
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
    )
    scheduler = Scheduler(
        memory,
        limits,
        info.eos_token_ids,
        weights_digest=opened.identity,
        kv_dtype=info.kv_dtype,
    )
    grammars = None
    if opened.tokenizer is not None:
        grammars = GrammarService(opened.tokenizer, info.vocab_size, info.eos_token_ids)
    return EngineCore(opened.executor, scheduler, info, grammars)


def open_core(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda line: None,
    log: FlightLog | None = None,
) -> EngineCore:
    """Load a model into this process and start its engine.

    Args:
        config: what it serves.
        progress: told in a line each what is being done.
        log: where it notes what a supervisor must know of it.

    Raises:
        TidemillError: the model or the configuration cannot be used.
    """
    core = make_core(open_inproc(config, progress), config)
    if log is not None:
        core.record_in(log)
    return core.start()


@atexit.register
def _close_all() -> None:
    for core in list(_running):
        if core.alive:  # in a fork of the process that loaded it, it is not
            core.close()
