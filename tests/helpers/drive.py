"""Drives a scheduler and a runner by hand, and collects what clients would see."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from helpers.fake_backend import FakeBackend, tiny_spec

from tidemill.base.errors import TidemillError
from tidemill.contract.plan import StepPlan
from tidemill.contract.request import ChoiceOutput, EngineRequest, RequestError
from tidemill.contract.sampling import SamplingParams
from tidemill.engine.core import DEPTH
from tidemill.memory.lease import KVMemory
from tidemill.memory.tiers import Tiers
from tidemill.sched.policy import Limits
from tidemill.sched.scheduler import Scheduler
from tidemill.sched.sequence import Emission
from tidemill.transfer.serving import BlockServer
from tidemill.worker.runner import Runner, RunnerHandle
from tidemill.worker.tiers.disk import DiskTier
from tidemill.worker.tiers.mover import Mover
from tidemill.worker.tiers.ram import RamTier

EOS = 3


def request(
    name: str,
    prompt: list[int] | tuple[int, ...],
    max_tokens: int = 8,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    ignore_eos: bool = True,
    priority: int = 0,
    arrival: float = 0.0,
    place: int = 0,
    deadline: float | None = None,
    resume: tuple[tuple[int, ...], ...] = (),
    salt: str = "",
    tenant: str = "",
    weight: float = 1.0,
    start_by: float | None = None,
    background: bool = False,
    speculation: str | None = None,
    prediction: tuple[int, ...] = (),
    explain: bool = False,
    **sampling: object,
) -> EngineRequest:
    """A request with test defaults: greedy, and nothing but its length ends it."""
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(
            temperature=temperature,
            seed=seed,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            **sampling,  # type: ignore[arg-type]
        ),
        priority=priority,
        arrival=arrival,
        place=place,
        deadline=deadline,
        resume=resume,
        cache_salt=salt,
        tenant=tenant,
        weight=weight,
        start_by=start_by,
        background=background,
        speculation=speculation,
        prediction=prediction,
        explain=explain,
    )


@dataclass
class Collected:
    """All that one choice was sent."""

    outputs: list[ChoiceOutput] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def terminal(self) -> list[ChoiceOutput]:
        return [output for output in self.outputs if output.finish_reason is not None]


class Machine:
    """Scheduler, worker and fake backend in one thread; every step is checked.

    Attributes:
        mover: moves a block when a test says so (`Mover.work`), or `run` has nothing else to do;
            there with `ram`, blocks, or `disk`.
        now: seconds of the scheduler's clock, which stands still unless a test sets it.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        groups: int = 1,
        max_num_seqs: int = 16,
        max_step_tokens: int = 32,
        max_model_len: int = 200,
        prefix_caching: bool = True,
        vocab: int = 97,
        depth: int = DEPTH,
        check: bool = True,
        layers: int = 0,
        speculate: str = "off",
        always_draft: bool = True,
        ram: int = 0,
        disk: Path | None = None,
        disk_limit: int = 2**30,
        peers: Any = None,
        serves: bool = False,
        snapshots: int = 0,
        pipelined: bool = False,
    ) -> None:
        self.vocab = vocab
        recurrent = snapshots > 0
        self.memory = KVMemory(
            (num_blocks,) * groups, block_size, prefix_caching=prefix_caching,
            recurrent=recurrent, snapshots=snapshots,
        )  # fmt: skip
        limits = Limits(
            max_num_seqs=max_num_seqs,
            max_step_tokens=max_step_tokens,
            max_model_len=max_model_len,
            vocab_size=vocab,
            depth=1 if recurrent else depth,
            layers=layers,
            speculation=speculate,
            always_draft=always_draft,
            pipelined=pipelined,
        )
        self.now = 0.0
        self.backend = FakeBackend(tiny_spec(vocab, groups), block_size)
        self.backend.layers = layers
        states = max_num_seqs if recurrent else 0
        self.backend.allocate_cache((num_blocks,) * groups, states=2 * states + snapshots)
        self.backend.recurrent = recurrent
        self.runner = Runner(
            self.backend, max_model_len, slots=2, states=states, snapshots=snapshots
        )
        self.mover: Mover | None = None
        tiers = None
        self.server: BlockServer | None = None
        if ram or disk is not None or peers is not None or serves:
            nbytes = sum(self.backend.block_bytes())
            self.mover = self.runner.mover = Mover(
                first_snapshot=self.runner.first_snapshot,
                cache=self.backend,
                ram=RamTier(ram * nbytes) if ram else None,
                disk=DiskTier(disk, disk_limit, b"i" * 32, nbytes, self.backend.checksum)
                if disk is not None
                else None,
            )
            self.mover.report = lambda report: self.take(self.scheduler.moved(report))
            if peers is not None or serves:
                if serves:
                    self.server = BlockServer(b"i" * 32, nbytes, crc32, self.mover.bring)
                self.mover.attach(peers, self.server)
            args = (
                self.memory,
                self.runner.tiers,
                self.mover.sizes,
                2 * max_step_tokens // block_size,
            )
            announce = self.runner.announce if serves else None
            loads = self.runner.peer_loads if peers is not None else None
            tiers = Tiers(*args, self.runner.tier_of, self.runner.move, announce, loads)
        self.scheduler = Scheduler(self.memory, limits, (EOS,), tiers=tiers, clock=lambda: self.now)
        self.collected: dict[tuple[str, int], Collected] = {}
        self.plans: list[StepPlan] = []
        self.in_flight: list[tuple[StepPlan, RunnerHandle]] = []
        self._check = check

    def take(self, emissions: list[Emission]) -> None:
        for _, output in emissions:
            box = self.collected.setdefault((output.request_id, output.choice), Collected())
            assert not box.terminal, f"{output} came after the end"
            box.outputs.append(output)
        if self._check:
            self.scheduler.check()

    def submit(self, *requests: EngineRequest) -> None:
        for one in requests:
            self.take(self.scheduler.submit(one))

    def launch(self) -> bool:
        """Plan and submit one step if the scheduler gives one."""
        plan = self.scheduler.plan()
        if self._check:
            self.scheduler.check()
        if plan is None:
            return False
        self.plans.append(plan)
        self.in_flight.append((plan, self.runner.submit(plan)))
        return True

    def land(self) -> None:
        """Commit the oldest step, or roll all back and end its rows when it failed."""
        plan, handle = self.in_flight[0]
        try:
            result = handle.result()
        except TidemillError as error:
            self.roll_back()
            wire = RequestError(error.kind, error.message)
            self.take(self.scheduler.fail(plan, wire))
            return
        self.in_flight.pop(0)
        self.take(self.scheduler.commit(plan, result))

    def roll_back(self) -> None:
        """Take every outstanding plan back, newest first."""
        for plan, _ in reversed(self.in_flight):
            self.runner.rollback(plan)
            self.scheduler.rollback(plan)
            if self._check:
                self.scheduler.check()
        self.in_flight.clear()

    def step(self) -> bool:
        """Keep as many steps outstanding as the scheduler allows, and land one."""
        while self.launch():
            pass
        if not self.in_flight:
            return False
        self.land()
        return True

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing is left."""
        for _ in range(limit):
            if not self.step() and not (self.mover is not None and self.mover.work()):
                assert not self.scheduler.has_work, "work is left and no step is planned"
                return
        raise AssertionError("the work does not end")

    def tokens(self, name: str, choice: int = 0) -> list[int]:
        return self.collected[name, choice].tokens
