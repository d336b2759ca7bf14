"""SimulatedEngine: the step loop of `engine.core` with the real scheduler, in simulated time.

Nothing is computed: a plan's end comes after the seconds that the costs say, and every row that
samples gets a token of its own. What the loop itself takes between two steps is a cost as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from tidemill.contract.config import EngineConfig
from tidemill.contract.moves import MoveReport, RecordSizes, Tier
from tidemill.contract.plan import Drafting, Row, RowResult, StepPlan, StepResult, StepTimings
from tidemill.contract.request import EngineRequest, FinishReason
from tidemill.contract.speculation import AUTO, DRAFT
from tidemill.contract.wire import EngineInfo
from tidemill.engine.core import LAUNCH_FRACTION, make_scheduler
from tidemill.executor.base import Executor
from tidemill.executor.inproc import OpenedExecutor
from tidemill.sched.decode_run import RunRow
from tidemill.sched.scheduler import Scheduler
from tidemill.sched.sequence import Emission
from tidemill.simulate.adapters import AdapterSizes, SimulatedAdapters
from tidemill.simulate.costs import Costs, EngineFacts, Work
from tidemill.simulate.decode import COMMIT_SHARE, VOCAB, Ahead, Landed, token_at
from tidemill.simulate.drafts import Drafts
from tidemill.simulate.tiers import Directory, SimulatedMover, TierSizes
from tidemill.simulate.timeline import Timeline

Deliver = Callable[[float, list[Emission]], None]
DeliverRun = Callable[[Sequence[RunRow], Sequence[Landed]], None]

_LOOK_EVERY = 16


def info_of(facts: EngineFacts, speculation: str | None = None) -> EngineInfo:
    """What an engine of these facts would say of itself; `speculation` as in `EngineInfo`."""
    return EngineInfo(
        model=facts.model,
        backend=facts.backend,
        isa=facts.isa,
        device="simulated",
        dtype=facts.dtype,
        quantization=facts.quantization,
        kv_dtype=facts.kv_dtype,
        threads=facts.threads,
        vocab_size=VOCAB,
        max_model_len=min(facts.max_model_len, facts.num_blocks * facts.block_size),
        block_size=facts.block_size,
        num_blocks=facts.num_blocks,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        kv_bytes=facts.kv_bytes_per_token * facts.num_blocks * facts.block_size,
        weight_bytes=facts.weight_bytes,
        max_num_seqs=facts.max_num_seqs,
        max_step_tokens=facts.max_step_tokens,
        prefix_caching=facts.prefix_caching,
        identity=facts.identity,
        speculation=speculation,
        drafters=() if speculation is None else (DRAFT,),
    )


def scheduler_of(
    facts: EngineFacts,
    clock: Callable[[], float],
    max_itl_ms: float | None = None,
    speculation: str | None = None,
    mover: SimulatedMover | None = None,
    tiers: tuple[Tier, ...] = (),
) -> Scheduler:
    """The scheduler that an engine of these facts has, with `tiers` that `mover` serves."""
    opened = OpenedExecutor(
        cast("Executor", mover),
        info_of(facts, speculation),
        facts.identity or facts.model,
        facts.groups,
        recurrent=facts.recurrent,
        snapshots=facts.snapshots,
        sliced_layers=facts.layers,
        tiers=tiers,
        record_sizes=RecordSizes(facts.block_size * facts.kv_bytes_per_token) if tiers else None,
        listens=Tier.PEER in tiers,
    )
    config = EngineConfig(model=facts.model, served_name=facts.model, max_itl_ms=max_itl_ms)
    return make_scheduler(opened, config, clock=clock)


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine has that not every one has.

    Attributes:
        max_itl_ms: as `EngineConfig.max_itl_ms`.
        drafts: what drafts for its streams; None: nothing.
        adapters: of requests with a model's name; None: such requests are the base model's.
        tiers: what lies below the device; None: nothing.
        directory, number: engines that bring blocks from one another, and this one's number there.
    """

    max_itl_ms: float | None = None
    drafts: Drafts | None = None
    adapters: AdapterSizes | None = None
    tiers: TierSizes | None = None
    directory: Directory = field(default_factory=Directory)
    number: int = 0


NO_PARTS = Parts()


@dataclass(slots=True)
class _Step:
    """A plan in flight with its rows, when it begins and ends, and what its drafters do at its
    end."""

    plan: StepPlan
    rows: int
    begins: float
    ends: float
    drafting: tuple[Drafting, ...] = ()


class SimulatedEngine:
    """One engine.

    Args:
        timeline: its time.
        facts: its model and sizes.
        costs: what its steps take.
        noise: draws factors of steps' seconds.
        deliver: is given outputs with the time at which they leave the engine, which may be a
            little later than now.
        deliver_run: is given the rows of steps that give each of them a token and nothing else.
        parts: what else it has.

    Attributes:
        scheduler: the real one.
        most: the largest numbers of its steps.
        busy: seconds in which a step was computed.
        waits: what requests waited for, by the steps that were looked at: ``computing``, ``batch``
            (places), ``memory`` (KV blocks).
    """

    decodes_ahead = True  # False: every step is an event (tests compare)

    def __init__(
        self,
        timeline: Timeline,
        facts: EngineFacts,
        costs: Costs,
        noise: Callable[[], float],
        deliver: Deliver,
        deliver_run: DeliverRun,
        parts: Parts = NO_PARTS,
    ) -> None:
        speculation = None if parts.drafts is None else AUTO
        self._mover: SimulatedMover | None = None
        tiers: tuple[Tier, ...] = ()
        if parts.tiers is not None and facts.prefix_caching:
            tiers = parts.tiers.tiers
            self._mover = SimulatedMover(
                timeline, parts.tiers, facts.block_size * facts.kv_bytes_per_token,
                self._moved, parts.directory, parts.number,
            )  # fmt: skip
        self.scheduler = scheduler_of(
            facts, timeline.clock, parts.max_itl_ms, speculation, self._mover, tiers
        )
        if self.decodes_ahead:
            self.scheduler.plan_together(token_at)
        self._drafts = parts.drafts
        self._adapters = None
        if parts.adapters is not None:
            self._adapters = SimulatedAdapters(timeline, parts.adapters, self.scheduler, self._post)
        self.most = Work(0, 0, 0, 0, 0)
        self.busy = 0.0
        self.waits: Counter[str] = Counter()
        self._facts = facts
        self._launched = 0
        self._last_step = -1
        self._timeline = timeline
        self._step = costs.step
        self._host = costs.host
        self._noise = noise
        self._deliver = deliver
        self._deliver_run = deliver_run
        self._drawn: deque[float] = deque()  # factors that were drawn for steps not yet launched
        self._ahead: Ahead | None = None
        self._told = 0  # steps of it whose outputs were delivered
        self._inbox: list[Callable[[], list[Emission]]] = []
        self._in_flight: deque[_Step] = deque()
        self._outputs: list[Emission] = []  # of the last step, which leave with the next
        self._idle = True

    def submit(self, request: EngineRequest) -> None:
        """A request has come."""
        self._post(partial(self._submitted, request))

    def _submitted(self, request: EngineRequest) -> list[Emission]:
        emissions = self.scheduler.submit(request)
        if request.adapters and not emissions and self._adapters is not None:
            emissions = self._adapters.acquire(request)
        return emissions

    def _moved(self, report: MoveReport) -> None:
        self._post(partial(self.scheduler.moved, report))

    def cancel(self, request_id: str) -> None:
        """A request's client has gone."""
        self._post(partial(self.scheduler.cancel, request_id, None, FinishReason.CANCELLED))

    def _post(self, command: Callable[[], list[Emission]]) -> None:
        self._inbox.append(command)
        if self._ahead is not None:
            self._interrupt()
        if self._idle:
            self._idle = False
            self._turn()

    def _turn(self) -> None:
        """Without a step in flight, launch one; then wait for the end of the oldest, or for the
        moment at which the next one is launched."""
        now = self._timeline.now
        received = self._receive()
        if not self._in_flight:
            begins = self._launch(now, received)
            if begins is None:
                return
            self._send(begins)
        self._await()

    def _receive(self) -> int:
        """Run the commands in the inbox; returns how many there were."""
        commands = len(self._inbox)
        if commands:
            waiting, self._inbox = self._inbox, []
            for command in waiting:
                self._outputs += command()
        return commands

    def _launch(self, ready: float, received: int) -> float | None:
        """Plan a step that begins once the loop is through and the step in flight has ended.

        Returns:
            When it begins; None if there is nothing to plan. Then the engine is idle.
        """
        plan = self.scheduler.plan()
        if plan is None:
            if not self._in_flight:
                self._outputs += self.scheduler.end_stuck() if self.scheduler.has_work else []
                if self.scheduler.has_work:
                    raise RuntimeError("the scheduler has work but planned no rows")
                self._idle = True
                self._send(ready)
            return None
        host, work = self._host, self._work(plan)
        if self._mover is not None:
            self._mover.launched(plan.step_id)
        begins = ready + host.step + host.row * work.rows + host.submit * received
        if self._in_flight:
            begins = max(begins, self._in_flight[-1].ends)
        seconds = self._step.of(work) * self._draw()
        drafting = () if self._drafts is None else self._drafts.drafting(plan)
        ends = begins + seconds + sum(drafter.seconds for drafter in drafting)
        self._in_flight.append(_Step(plan, work.rows, begins, ends, drafting))
        self._last_step = plan.step_id
        self._count(work, seconds)
        if self._launched % _LOOK_EVERY == 0:
            self._look()
        return begins

    def _work(self, plan: StepPlan) -> Work:
        load, together = self.scheduler.newest
        samples = sum((1 + len(row.draft_token_ids)) for row in plan.rows if row.sample)
        rows = together + len(plan.rows)
        return Work(
            load.tokens, load.pairs, load.reach, together + samples, rows, load.adapter_bytes
        )

    def _draw(self) -> float:
        return self._drawn.popleft() if self._drawn else self._noise()

    def _count(self, work: Work, *seconds: float) -> None:
        """So many steps were launched, the last of them the largest."""
        for one in seconds:
            self.busy += one
        self.most = Work(*map(max, self.most, work))  # type: ignore[arg-type]
        self._launched += len(seconds)

    def _look(self) -> None:
        """Note what requests wait for that have not been given a first token."""
        stats, facts = self.scheduler.stats(), self._facts
        if not stats.queued:
            return
        free = (stats.blocks_total - stats.blocks_used) // facts.groups * facts.block_size
        if stats.running >= facts.max_num_seqs:
            self.waits["batch"] += 1
        elif free < stats.waiting_tokens / stats.queued:
            self.waits["memory"] += 1
        else:
            self.waits["computing"] += 1

    def _await(self) -> None:
        if self._decode_ahead():
            return
        step, timeline = self._in_flight[0], self._timeline
        if len(self._in_flight) == 1 and (seconds := self.scheduler.overlap_seconds) is not None:
            host = self._host
            lead = host.step + host.row * step.rows
            due = max(timeline.now, step.begins + LAUNCH_FRACTION * seconds - 2 * lead)
            if due < step.ends:
                timeline.at(due, self._launch_ahead)
                return
        timeline.at(step.ends, self._land)

    def _launch_ahead(self) -> None:
        self._launch(self._timeline.now, self._receive())
        self._timeline.at(self._in_flight[0].ends, self._land)

    def _land(self) -> None:
        """The oldest step has ended."""
        step = self._in_flight.popleft()
        rows = tuple(self._result(row) for row in step.plan.rows)
        seconds = step.ends - step.begins
        if step.drafting:
            seconds -= sum(drafter.seconds for drafter in step.drafting)
        result = StepResult(
            step_id=step.plan.step_id,
            rows=rows,
            timings=StepTimings(0.0, seconds, 0.0, seconds),
            drafting=step.drafting,
        )
        if self._mover is not None:
            self._mover.landed(step.plan.step_id)
        self._outputs += self.scheduler.commit(step.plan, result)
        self._settle()
        if self._in_flight or not (self.scheduler.has_work or self._inbox):
            loop = self._host.step + self._host.row * step.rows
            self._send(step.ends + COMMIT_SHARE * loop)
        if self._in_flight or self.scheduler.has_work or self._inbox:
            self._turn()
        else:
            self._idle = True

    def _settle(self) -> None:
        """Take back adapters that no step in flight can name."""
        if self._adapters is not None:
            oldest = self._in_flight[0].plan.step_id if self._in_flight else None
            self._outputs += self._adapters.settle(self._last_step, oldest)

    def _result(self, row: Row) -> RowResult:
        if not row.sample:
            return RowResult(seq_id=row.seq_id)
        if self._drafts is not None:
            return self._drafts.result(row)
        return RowResult(seq_id=row.seq_id, token_ids=(token_at(row.seq_id, row.start),))

    # -- steps that only decode --------------------------------------------------------------

    def _decode_ahead(self) -> bool:
        """Compute the steps until a stream ends, if nothing but decoding happens until then."""
        if not self.decodes_ahead or len(self._in_flight) != 1 or self._inbox or self._outputs:
            return False
        seconds, run = self.scheduler.overlap_seconds, self.scheduler.decode_run()
        if seconds is None or run is None:
            return False
        step = self._in_flight[0]
        self._ahead, self._told = Ahead(
            *(run, step.begins, step.ends, seconds), now=self._timeline.now,
            cost=self.scheduler.cost.copy(), step=self._step, host=self._host, draw=self._draw,
        ), 0  # fmt: skip
        self._continue(self._ahead)
        return True

    def _continue(self, ahead: Ahead) -> None:
        if self._ahead is not ahead:
            return
        if ahead.compute():
            self._timeline.at(ahead.landed[-1].at, partial(self._continue, ahead))
        else:
            self._interrupt()

    def catch_up(self) -> None:
        """Deliver what has left the engine by now."""
        ahead = self._ahead
        if ahead is None:
            return
        now, landed = self._timeline.now, ahead.landed
        upto = bisect_right(landed, now, key=lambda step: step.at)
        if upto > self._told:
            self._deliver_run(ahead.run.rows, landed[self._told : upto])
            self._told = upto

    def _interrupt(self) -> None:
        """Bring the scheduler to where it is now, and go on step by step."""
        self.catch_up()
        ahead, now = self._ahead, self._timeline.now
        assert ahead is not None
        self._ahead, landed = None, self._told
        launched = landed  # of the steps after the first
        if landed == len(ahead.landed) < ahead.run.steps:
            ahead.compute()
        if landed < ahead.run.steps and ahead.ahead[landed] and ahead.launches[landed] <= now:
            launched += 1
        if landed:
            seconds = [e - b for b, e in zip(ahead.begins, ahead.ends[:landed], strict=False)]
            learned = ahead.cost if landed == len(ahead.landed) else None
            plan = self.scheduler.follow(ahead.run, ahead.predicted, seconds, token_at, learned)
            rows = len(ahead.run.rows)
            self._in_flight = deque([_Step(plan, rows, ahead.begins[landed], ahead.ends[landed])])
            self._last_step = plan.step_id
            self._settle()
        if launched > landed:
            following = self.scheduler.plan()
            assert following is not None
            self._last_step = following.step_id
            rows = len(ahead.run.rows)
            begins, ends = ahead.begins[launched], ahead.ends[launched]
            self._in_flight.append(_Step(following, rows, begins, ends))
        if launched:
            self._count(ahead.work(launched), *ahead.seconds[:launched])
        self._drawn.extendleft(reversed(ahead.drawn[launched:]))
        if landed == ahead.run.steps:
            self._await()
        elif launched == landed and ahead.ahead[landed]:
            self._timeline.at(ahead.launches[landed], self._launch_ahead)
        else:
            self._timeline.at(ahead.ends[landed], self._land)

    def _send(self, when: float) -> None:
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._deliver(when, outputs)
