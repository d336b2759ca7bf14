"""Runner: runs step plans on a backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import (
    NOT_REACHED,
    Backend,
    LogprobArrays,
    StepHandle,
    StepOutputs,
)
from tidemill.base.errors import unsupported
from tidemill.contract.moves import BlockMoves, MoveReport, PeerLoad, RecordSizes, Tier
from tidemill.contract.plan import (
    BlockCopy,
    Candidate,
    RowResult,
    StepPlan,
    StepResult,
    StepTimings,
)
from tidemill.contract.request import TokenLogprob
from tidemill.models.head import Head
from tidemill.worker.hidden import named_states, spans
from tidemill.worker.inputs import InputBuilder, PreparedStep
from tidemill.worker.pooling import Pooler
from tidemill.worker.speculate.drafter import NOTHING, Drafted

if TYPE_CHECKING:
    from tidemill.contract.profile import MachineRates, StepCounters
    from tidemill.transfer.link import Link
    from tidemill.transfer.serving import Prefills
    from tidemill.worker.adapters import AdapterLoader
    from tidemill.worker.speculate.drafter import Drafter, LoadedDrafter
    from tidemill.worker.speculate.speculation import Speculation
    from tidemill.worker.tiers.mover import Mover

MAX_OUTSTANDING = 2

SAVING_SECONDS = 5.0
"""An engine that closes takes so long at most for blocks that are still to be saved."""

NO_TOKEN = -1

# What a negative sampled token means: (message, error kind).
_SAMPLING_ERRORS = {
    NO_TOKEN: (
        "the output constraint leaves no token (a logit_bias of -100 bans one; are all banned?)",
        "bad_request",
    ),
    -2: (
        "the model computes values that are not finite numbers (NaN): its file is probably "
        "damaged, or its weights overflow the computing type (try --dtype float32)",
        "not_finite",
    ),
}
_NO_STATES: dict[str, bytes] = {}
_NO_DRAFTS = ("", NOTHING)
_NOT_DRAFTED = Drafted({}, ())
_NOTHING_SAMPLED: tuple[int, list[int]] = (0, [])
_UNKNOWN_ERROR = ("the backend sampled no token", "internal")


class RunnerHandle:
    """A submitted plan."""

    def __init__(self, runner: Runner, step: PreparedStep, handle: StepHandle) -> None:
        self.step = step
        self._runner = runner
        self._handle = handle

    def set_mask(self, row: int, draft: int, bits: NDArray[np.uint8]) -> None:
        """Give the token mask that a row with `mask_announced` waits for; see `StepHandle`.

        `row` counts the plan's rows; one that was refused needs no mask any more.
        """
        if self.step.refused:
            seq_id = self.step.plan.rows[row].seq_id
            if seq_id in self.step.refused:
                return
            row = next(i for i, kept in enumerate(self.step.rows) if kept.seq_id == seq_id)
        self._handle.set_mask(row, draft, bits)

    def done(self, seconds: float = 0.0) -> bool:
        """See executor.base.PlanHandle."""
        return self._handle.done(seconds)

    def result(self) -> StepResult:
        """Wait for the step; its tokens become known to the worker.

        Raises:
            TidemillError: the step failed. `Runner.rollback` is called next, newest plan first.
        """
        outputs = self._handle.result()
        runner = self._runner
        runner.ended(self.step)
        runner.place_prefixes(self.step)
        runner.inputs.accept(self.step, outputs.sampled)
        pooled = runner.pooled(self.step, outputs) if self.step.poolings else {}
        speculation = runner.speculation
        drafted = _NOT_DRAFTED if speculation is None else speculation.propose(self.step, outputs)
        return _result(self.step, outputs, pooled, drafted)


class Runner:
    """Turns plans into steps of a backend.

    Args:
        backend: with its cache allocated.
        max_len: positions a sequence may have.
        slots: sequences there is room for at first.
        states: of a recurrent model, how many sequences may hold states (two each).
        head: the model's classification head; empty without one.
        drafters: those that hold memory of their own, by name; closed with it.
        adapters: reads adapters of the model; None: it has none.
        mover: moves blocks to tiers below the backend's cache and back; None: there are none.
        snapshots, draft_states: see `InputBuilder`.
    """

    def __init__(
        self,
        backend: Backend,
        max_len: int,
        slots: int = 64,
        states: int = 0,
        head: Head = (),
        drafters: Mapping[str, LoadedDrafter] | None = None,
        adapters: AdapterLoader | None = None,
        mover: Mover | None = None,
        snapshots: int = 0,
        draft_states: int = 0,
    ) -> None:
        self.backend = backend
        self.mover = mover
        self._held_moves: list[BlockMoves] = []  # their loads wait for plans in flight
        self._adapters = adapters
        self._pooler = Pooler(head)
        groups = len(backend.spec.cache_groups())
        spec, size = backend.spec, backend.options.block_size
        layers = len(spec.layers)
        soft_prompts = None if adapters is None else adapters.soft_prompts
        self.inputs = InputBuilder(
            groups, max_len, size, slots, states, layers, soft_prompts, snapshots, draft_states
        )
        self._steps: dict[int, PreparedStep] = {}
        self._loaded = dict(drafters or {})
        self._own: dict[str, Callable[[], Drafter]] = {}
        self._in_flight: set[int] = set()
        self.speculation: Speculation | None = None  # made when a sequence first has a drafter

    def submit(self, plan: StepPlan) -> RunnerHandle:
        """Prepare and queue a plan. At most two are in flight."""
        self._pooler.forget(plan.finished)
        if self.speculation is None and any(new.drafters for new in plan.new):
            self.speculation = self._open_speculation()
        if self.speculation is not None:
            self.speculation.begin(plan)
        try:
            step = self.inputs.prepare(plan)
        except Exception:
            # The plan's rows fail, so its new sequences must not stay registered.
            self.inputs.forget_new(plan)
            if self.speculation is not None:
                self.speculation.forget_new(plan)
            raise
        while len(self._steps) >= MAX_OUTSTANDING:
            del self._steps[next(iter(self._steps))]
        self._steps[plan.step_id] = step
        if self.speculation is not None:
            self.speculation.request(step)
        handle = RunnerHandle(self, step, self.backend.submit(step.inputs))
        self._in_flight.add(plan.step_id)
        if self.speculation is not None:
            self.speculation.read(plan)
        return handle

    def _open_speculation(self) -> Speculation:
        from tidemill.worker.speculate.speculation import DRAFTERS, Speculation

        loaded = {name: partial(_same, drafter) for name, drafter in self._loaded.items()}
        return Speculation(self.inputs.sequences, {**DRAFTERS, **loaded, **self._own})

    def add_drafter(self, name: str, make: Callable[[], Drafter]) -> None:
        """Let a drafter be made that works with the model itself; before the first plan."""
        self._own[name] = make

    def ended(self, step: PreparedStep) -> None:
        """A step has its outputs."""
        self._left(step.plan.step_id)

    def _left(self, step_id: int) -> None:
        """A step writes nothing any more: begin the loads that waited for that."""
        self._in_flight.discard(step_id)
        if self._held_moves:
            held, self._held_moves = self._held_moves, []
            for moves in held:
                self.move(moves)

    def move(self, moves: BlockMoves) -> None:
        """See executor.base.Executor."""
        assert self.mover is not None
        after = moves.after
        if not moves.loads or after is None or all(n > after for n in self._in_flight):
            self.mover.begin(moves)
            return
        self.mover.begin(
            BlockMoves(
                saves=moves.saves,
                cancelled_saves=moves.cancelled_saves,
                cancelled_loads=moves.cancelled_loads,
            )
        )
        self._held_moves.append(BlockMoves(loads=moves.loads, after=after))

    def report_moves(self, report: Callable[[MoveReport], None]) -> None:
        """See executor.base.Executor."""
        assert self.mover is not None
        self.mover.report = report

    def on_requests(self, take: Callable[[Link], None]) -> None:
        """See executor.base.Executor."""
        if self.mover is not None:
            self.mover.on_requests = take

    def serve_prefills(self, prefills: Prefills) -> None:
        """See executor.base.Executor."""
        if self.mover is not None and self.mover.server is not None:
            self.mover.server.prefills = prefills

    def peer_loads(self) -> list[tuple[str, PeerLoad]]:
        """See executor.base.Executor."""
        return [] if self.mover is None else self.mover.peer_loads()

    def announce(self, digest: bytes, there: bool) -> None:
        """See executor.base.Executor."""
        assert self.mover is not None
        self.mover.announce(digest, there)

    def tier_of(self, digest: bytes) -> Tier | None:
        """See executor.base.Executor."""
        return None if self.mover is None else self.mover.tier_of(digest)

    @property
    def first_snapshot(self) -> int:
        """Of a recurrent model, the state that snapshot 0 is."""
        return self.inputs.first_snapshot

    @property
    def record_sizes(self) -> RecordSizes | None:
        """Of what moves to tiers; None without any."""
        return None if self.mover is None else self.mover.sizes

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """What lies below the backend's cache, the nearest first."""
        return () if self.mover is None else self.mover.tiers

    def place_prefixes(self, step: PreparedStep) -> None:
        """Put keys and values that adapters bring where the step computed their placeholders."""
        if self._adapters is not None and (prefixes := self._adapters.prefixes):
            from tidemill.worker.prefixes import place

            place(self.backend, self.inputs.sequences, step, prefixes)

    def add_loaded(self, name: str, drafter: LoadedDrafter) -> None:
        """As `add_drafter`, of one that holds memory; it is closed with the runner."""
        self._loaded[name] = drafter

    def idle(self) -> bool:
        """Whether no step is in flight."""
        return not self._in_flight

    def pooled(self, step: PreparedStep, outputs: StepOutputs) -> dict[int, bytes]:
        """Pool the step's hidden states; per row index the finished vector, or empty bytes."""
        found, inputs = {}, step.inputs
        none = np.zeros((0, self.backend.spec.hidden_size), np.float32)
        for i, span in enumerate(spans(inputs)):
            start, end = int(inputs.context_len[i]), int(step.ends[i])
            hidden = none if outputs.hidden is None else outputs.hidden[span]
            if i in step.poolings:
                length = int(self.inputs.sequences.prompt_len[step.slots[i]])
                pooling, seq_id = step.poolings[i], step.rows[i].seq_id
                found[i] = self._pooler.take(seq_id, pooling, start, end, length, hidden)
        return found

    def rollback(self, plan: StepPlan) -> None:
        """Undo what a failed plan changed here; the newest one first."""
        self._left(plan.step_id)
        if self.speculation is not None:
            self.speculation.forget_new(plan)
        step = self._steps.pop(plan.step_id, None)
        if step is not None:
            self.inputs.undo(step)

    def give_back(self, group: int, blocks: Sequence[int]) -> None:
        """See executor.base.Executor."""
        self.backend.give_back_blocks(group, np.array(blocks, np.int32))

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """See executor.base.Executor."""
        for copy in copies:
            self.backend.copy_blocks(copy.group, np.array([[copy.source, copy.target]], np.int32))

    def _everything(self) -> tuple[Backend | LoadedDrafter, ...]:
        return self.backend, *self._loaded.values()

    def stop_loading(self) -> None:
        """See executor.base.Executor."""
        for one in self._everything():
            one.stop_loading()

    def limit_cache(self, blocks: int) -> None:
        """See executor.base.Executor."""
        for one in self._everything():
            one.limit_cache(blocks)

    def empty_cache(self) -> None:
        """See executor.base.Executor."""
        for one in self._everything():
            one.empty_cache()

    def release_weights(self) -> None:
        """See executor.base.Executor."""
        for one in self._everything():
            one.release_weights()

    def restore_weights(self) -> None:
        """See executor.base.Executor."""
        for one in self._everything():
            one.restore_weights()

    def unloaded_bytes(self) -> int:
        """See executor.base.Executor."""
        drafters = sum(drafter.unloaded_bytes() for drafter in self._loaded.values())
        return self.backend.memory().promised_bytes + drafters

    def start_profile(self, events: int) -> None:
        """See executor.base.Executor."""
        self.backend.start_profile(events)

    def end_profile(self) -> StepCounters | None:
        """See executor.base.Executor."""
        from tidemill.worker.profiling import step_counters

        return step_counters(self.backend.end_profile())

    def machine_rates(self) -> MachineRates | None:
        """See executor.base.Executor."""
        from tidemill.worker.profiling import rates_of

        return rates_of(self.backend.machine_rates())

    def progress(self) -> int:
        """See executor.base.Executor."""
        return sum(one.progress() for one in self._everything())

    @property
    def adapters(self) -> AdapterLoader:
        """Loads adapters into the backend. Raises UNSUPPORTED where there are none."""
        if self._adapters is None:
            raise unsupported("adapter", "this executor has no adapters")
        return self._adapters

    def close(self) -> None:
        """Free the backend, and the drafters that hold memory. Blocks that are to be saved are
        saved before, as far as `SAVING_SECONDS` allow."""
        if self.mover is not None:
            self.mover.close(SAVING_SECONDS)
        for one in self._everything():
            one.close()


def _same(drafter: LoadedDrafter) -> LoadedDrafter:
    return drafter


def _result(
    step: PreparedStep,
    outputs: StepOutputs,
    pooled: dict[int, bytes],
    drafted: Drafted,
) -> StepResult:
    # Per row: its first sampled position, and the tokens of those it reached.
    sampled: dict[int, tuple[int, list[int]]] = {}
    rows_of = step.sampling.tolist()
    for s, token in enumerate(outputs.sampled.tolist()):
        i = rows_of[s]
        if i not in sampled:
            sampled[i] = s, [token]
        elif token != NOT_REACHED:
            sampled[i][1].append(token)
    prompt = _prompt_logprobs(step, outputs.targets)
    wanted, beams = step.inputs.sampling.num_logprobs, step.inputs.sampling.candidates
    states: dict[int, dict[str, bytes]] = {}
    if step.inputs.hidden is not None:
        rejected = {
            i: len(step.rows[i].draft_token_ids) + 1 - max(1, sum(t >= 0 for t in found))
            for i, (_, found) in sampled.items()
        }
        states = named_states(step.inputs, outputs, step.rows, rejected)
    computed: dict[int, RowResult] = {}
    for i, row in enumerate(step.rows):
        first, tokens = sampled.get(i, _NOTHING_SAMPLED)
        if tokens and beams is not None and beams[first]:
            computed[row.seq_id] = _beam_result(row.seq_id, tokens[0], outputs, first, wanted)
            continue
        if tokens and tokens[-1] < 0:
            if len(tokens) == 1:
                message, kind = _SAMPLING_ERRORS.get(tokens[0], _UNKNOWN_ERROR)
                computed[row.seq_id] = RowResult(seq_id=row.seq_id, error=message, error_kind=kind)
                continue
            # The next step fails there, without the drafts before: their tokens are good.
            tokens = tokens[:-1]
        vector = pooled.get(i, b"")
        logprobs_of_prompt = prompt.get(i)
        if not (_is_finite(vector) and _are_numbers(logprobs_of_prompt)):
            message, kind = _SAMPLING_ERRORS[-2]
            computed[row.seq_id] = RowResult(seq_id=row.seq_id, error=message, error_kind=kind)
            continue
        logprobs = None
        if tokens and outputs.logprobs is not None and (width := int(wanted[first])) >= 0:
            logprobs = tuple(
                _token_logprob(token, outputs.logprobs, s, width)
                for s, token in enumerate(tokens, first)
            )
        drafter, proposal = drafted.proposals.get(row.seq_id, _NO_DRAFTS)
        computed[row.seq_id] = RowResult(
            seq_id=row.seq_id,
            token_ids=tuple(tokens),
            draft_token_ids=proposal.token_ids,
            drafter=drafter,
            confidence=proposal.confidence,
            quiet=proposal.quiet,
            logprobs=logprobs,
            prompt_logprobs=logprobs_of_prompt,
            pooled=vector,
            hidden_states=states.get(i, _NO_STATES),
        )
    rows = tuple(step.refused.get(row.seq_id) or computed[row.seq_id] for row in step.plan.rows)
    return StepResult(
        step_id=step.plan.step_id,
        rows=rows,
        timings=StepTimings(*outputs.seconds),
        drafting=drafted.drafting,
    )


def _beam_result(
    seq_id: int, best: int, outputs: StepOutputs, s: int, wanted: NDArray[np.int32]
) -> RowResult:
    """The result of sampling row `s`, a beam's."""
    if best < 0 and best != NO_TOKEN:
        message, kind = _SAMPLING_ERRORS.get(best, _UNKNOWN_ERROR)
        return RowResult(seq_id=seq_id, error=message, error_kind=kind)
    arrays = outputs.candidates
    assert arrays is not None
    count = int((arrays.ids[s] >= 0).sum())
    columns = (arrays.ids, arrays.scores, arrays.logprobs)
    found = zip(*(column[s, :count].tolist() for column in columns), strict=True)
    logprobs = None
    if count and outputs.logprobs is not None and wanted[s] >= 0:
        logprobs = (_token_logprob(best, outputs.logprobs, s, int(wanted[s])),)
    candidates = tuple(Candidate(*each) for each in found)
    return RowResult(seq_id=seq_id, candidates=candidates, logprobs=logprobs)


def _is_finite(vector: bytes) -> bool:
    return not vector or bool(np.isfinite(np.frombuffer(vector, np.float32)).all())


def _are_numbers(logprobs: tuple[TokenLogprob, ...] | None) -> bool:
    """A token that cannot be is of probability 0, whose logarithm is a number here."""
    return logprobs is None or not any(math.isnan(one.logprob) for one in logprobs)


def _token_logprob(token: int, arrays: LogprobArrays, n: int, count: int) -> TokenLogprob:
    ids = arrays.top_ids[n, :count].tolist()
    values = arrays.top_values[n, :count].tolist()
    top = tuple((i, v) for i, v in zip(ids, values, strict=True) if i >= 0)
    return TokenLogprob(token, float(arrays.chosen[n]), top)


def _prompt_logprobs(
    step: PreparedStep, targets: LogprobArrays | None
) -> dict[int, tuple[TokenLogprob, ...]]:
    """Per row (by index) with targets, their logprobs in order of position."""
    if targets is None:
        return {}
    inputs = step.inputs
    positions = np.flatnonzero(inputs.target_ids >= 0)
    row_of = np.searchsorted(inputs.row_start, positions, side="right") - 1
    found: dict[int, list[TokenLogprob]] = {}
    for n, (t, row) in enumerate(zip(positions.tolist(), row_of.tolist(), strict=True)):
        count = int(inputs.target_logprobs[row])
        token = int(inputs.target_ids[t])
        found.setdefault(row, []).append(_token_logprob(token, targets, n, count))
    return {row: tuple(logprobs) for row, logprobs in found.items()}
