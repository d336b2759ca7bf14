"""State: running and waiting sequences, and the choice of preemption victims."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from tidemill.contract.history import PreemptionCause
from tidemill.contract.request import Status
from tidemill.memory.lease import KVMemory
from tidemill.sched.cost import StepCost
from tidemill.sched.fairness import Tenants
from tidemill.sched.misses import Roots
from tidemill.sched.policy import Limits
from tidemill.sched.queue import WaitingQueue
from tidemill.sched.sequence import BeamGroup, RequestState, Sequence

if TYPE_CHECKING:
    from tidemill.sched.bringing import Bringing
    from tidemill.sched.plain_rows import PlainRows
    from tidemill.sched.speculation.controller import Controller


@dataclass(slots=True)
class Line:
    """Those who share: tenants, and their waiting sequences."""

    tenants: Tenants = field(default_factory=Tenants)
    queue: WaitingQueue = field(default_factory=WaitingQueue)


@dataclass(slots=True)
class Resumed:
    """Tokens that preempted sequences had computed, by how they got them again: their blocks were
    still cached, came back from tiers (a swap), or were computed again."""

    cached: int = 0
    brought: int = 0
    computed: int = 0


class State:
    """Running and waiting sequences, and counters over them.

    Invariants: `running` is sorted by order. A sequence is in exactly one of `running`, its line's
    `queue`, its request's `held` and `bringing.waiting`. Running sequences have a lease. Waiting
    ones have none, except `forks`, which share their leader's blocks until they run.

    Args:
        memory: allocation of KV blocks.
        limits: bounds.
        clock: seconds, the only time that the scheduler knows.

    Attributes:
        lines: of foreground and background sequences; index with `Sequence.background`.
        tenants, queue: of the foreground.
        groups: all beam searches that have not ended.
        seq_ids: of new sequences.
        roots: of the hash chains of requests that are to be explained.
        bringing: sequences that wait for blocks of lower tiers; None: there are no tiers.
        speculation: made when a sequence first has a drafter.
        plain_rows: plans streams together; None: each has a row of its own.
    """

    def __init__(self, memory: KVMemory, limits: Limits, clock: Callable[[], float]) -> None:
        self.memory = memory
        self.limits = limits
        self.clock = clock
        self.lines = (Line(), Line())
        self.tenants, self.queue = self.lines[False].tenants, self.lines[False].queue
        self.cost = StepCost()
        self.running: list[Sequence] = []
        self.forks: dict[int, Sequence] = {}
        self.groups: list[BeamGroup] = []
        self.seq_ids = count()
        self.preempted_to_send: list[int] = []
        self.finished_to_send: list[int] = []
        self.preemptions = 0
        self.resumed = Resumed()
        self.forced = 0
        self.roots = Roots()
        self.bringing: Bringing | None = None
        self.speculation: Controller | None = None
        self.plain_rows: PlainRows | None = None
        self.drafted = 0
        self.drafts_accepted = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def explain(self, owner: RequestState) -> None:
        """A request has come that is to be explained."""
        self.memory.remember_evictions()
        self.roots.note(owner.root, owner.request.cache_salt)

    def queue_of(self, seq: Sequence) -> WaitingQueue:
        """Where it waits."""
        return self.lines[seq.background].queue

    def running_of(self, *, background: bool) -> list[Sequence]:
        """Running sequences of a line, sorted by order."""
        if not len(self.lines[True].tenants):
            return [] if background else self.running
        return [seq for seq in self.running if seq.background == background]

    def start(self, seq: Sequence) -> None:
        """Move a waiting sequence to `running`."""
        seq.move_to(Status.RUNNING)
        seq.loads = seq.brought = seq.lost = 0
        self.forks.pop(seq.seq_id, None)
        insort(self.running, seq, key=lambda s: s.order)
        if seq.first_scheduled is None:
            seq.first_scheduled = self.clock()

    def count_prefix_hit(self, seq: Sequence, cached: int) -> None:
        """Count the prefix cache hit of a request's first admission; forks and readmissions do not
        count."""
        owner = seq.owner
        if owner.cached_tokens is None:
            owner.cached_tokens = min(cached, seq.prompt_len)
            self.prompt_tokens += seq.prompt_len - owner.virtual_tokens
            self.cached_tokens += owner.cached_of_prompt or 0

    def count_resumed(self, seq: Sequence, start: int) -> None:
        """Count where the tokens of a preempted sequence come from, of which `start` are there."""
        if not seq.lost:
            return
        brought = min(seq.brought, start)
        self.resumed.brought += brought
        self.resumed.cached += start - brought
        self.resumed.computed += max(0, seq.lost - start)
        if seq.history is not None:
            seq.history.resumed(brought)

    def blocks_promised(self) -> int:
        """Blocks (per group) that the known tokens of running sequences still need."""
        blocks_for = self.memory.blocks_for
        promised = sum(
            max(0, blocks_for(seq.known) - seq.lease.num_blocks)
            for seq in self.running
            if seq.lease is not None
        )
        return promised + sum(group.reserved for group in self.groups if group.running)

    @property
    def places(self) -> int:
        """How many more sequences may run."""
        taken = len(self.running) + sum(group.missing for group in self.groups)
        return self.limits.max_num_seqs - taken

    def has_place(self, seq: Sequence) -> bool:
        """The sequence may run; of a beam search, all its beams. Alone it always may: the limit may
        be below its width under memory pressure."""
        width = 1 if seq.owner.beams is None else seq.owner.beams.search.width
        return width <= self.places or not self.running

    def victim(self, requester: Sequence, planned: set[int]) -> Sequence | None:
        """The sequence to preempt for `requester`: the preemptible one cheapest to recompute.

        A sequence is preemptible if it has no row in this plan (`planned`), and its tenant holds
        more blocks per weight, or equally many and the sequence is later in order. The oldest
        running sequence is never preempted and may preempt any other: it always makes progress,
        which rules out livelock. Background sequences are preempted before all others, and only
        for others; the oldest is one of them only while nothing else runs.
        """
        oldest = self._oldest()
        behind = self.running_of(background=True)
        if behind and not requester.background:
            behind = [seq for seq in behind if not _is_planned(seq, planned)]
            if behind:
                return self._least_loss(behind)
        held = self._held_per_weight(background=requester.background)
        mine = held[requester.owner.request.tenant]

        def is_preemptible(seq: Sequence) -> bool:
            if _is_planned(seq, planned) or _together(seq, requester) or _together(seq, oldest):
                return False
            if seq.background != requester.background:
                return False
            theirs = held[seq.owner.request.tenant]
            if _together(requester, oldest) or theirs > mine:
                return True
            return theirs == mine and seq.order > requester.order

        return self._least_loss([seq for seq in self.running if is_preemptible(seq)])

    def background_victim(self) -> Sequence | None:
        """The background sequence to preempt for a waiting one of the foreground."""
        return self._least_loss(self.running_of(background=True))

    def preemptable_for(self, tenant: str) -> Sequence | None:
        """The sequence to preempt for a tenant that has none running: one of a tenant above its
        share of blocks or sequences, and not that tenant's only one."""
        total = self.memory.capacity_tokens // self.memory.block_size
        slots = self.limits.max_num_seqs
        held, count = self._held(), self._running_per_tenant()
        above = {
            name
            for name, running in count.items()
            if running > 1
            and name != tenant
            and max(held[name] / total, running / slots) > self.tenants.share(name)
        }
        oldest = self._oldest()
        candidates = [
            s
            for s in self.running_of(background=False)
            if not _together(s, oldest) and s.owner.request.tenant in above
        ]
        return self._least_loss(candidates)

    def _least_loss(self, candidates: list[Sequence]) -> Sequence | None:
        """The candidate with the fewest tokens to recompute; of equal ones the last in order.
        Candidates whose preemption would free no block are chosen last."""
        best: Sequence | None = None
        least = (True, 0)
        for seq in reversed(candidates):
            assert seq.lease is not None
            own = seq.lease.num_exclusive
            shared = (seq.lease.num_blocks - own) * self.memory.block_size
            loss = (own == 0, max(0, seq.computed - shared))
            if best is None or loss < least:
                best, least = seq, loss
        return best

    def _oldest(self) -> Sequence | None:
        running = self.running_of(background=False) or self.running
        return min(running, key=lambda seq: seq.order[2:], default=None)

    def _held(self, *, background: bool = False) -> dict[str, int]:
        """Blocks per tenant with running sequences."""
        held: dict[str, int] = {}
        for seq in self.running_of(background=background):
            name = seq.owner.request.tenant
            held[name] = held.get(name, 0) + (seq.lease.num_blocks if seq.lease else 0)
        return held

    def _held_per_weight(self, *, background: bool) -> dict[str, float]:
        share = self.lines[background].tenants.share
        return {n: held / share(n) for n, held in self._held(background=background).items()}

    def _running_per_tenant(self) -> dict[str, int]:
        """Sequences per tenant; a beam search counts as one, since all of it is preempted."""
        count: dict[str, int] = {}
        for seq in self.running_of(background=False):
            if seq.owner.beams is not None and seq is not seq.owner.beams.leader:
                continue
            count[seq.owner.request.tenant] = count.get(seq.owner.request.tenant, 0) + 1
        return count

    def release_waiting_fork(self, except_for: Sequence | None = None) -> bool:
        """Close the lease of one waiting fork, which will later look up or recompute its prompt."""
        for seq in self.forks.values():
            if seq is not except_for and seq.lease is not None:
                del self.forks[seq.seq_id]
                seq.lease.close()
                seq.forget_progress()
                return True
        return False

    def add_fork(self, seq: Sequence, leader: Sequence) -> None:
        """Queue a choice that shares its leader's blocks, if the leader has computed the prompt.

        All prompt tokens but the last are shared. Computing the last one yields the logits that the
        choice samples from.
        """
        shared = seq.prompt_len - 1
        recurrent = self.memory.recurrent  # the leader's state is beyond that token
        if leader.lease is not None and leader.computed >= shared and not recurrent:
            block_size = self.memory.block_size
            seq.lease = leader.lease.fork(shared)
            seq.computed = seq.planned = shared
            seq.published = shared // block_size
            seq.keys = leader.keys[: seq.published]
            self.forks[seq.seq_id] = seq
        self.queue_of(seq).push(seq)

    def preempt(self, seq: Sequence, cause: PreemptionCause | None, by: str = "") -> None:
        """Free a running sequence's blocks and queue it again, at its old position. Of a beam
        search, the blocks of all beams are freed, and the first one is queued (`sched.beams`).

        Args:
            seq: the sequence.
            cause: why; None: an admission is undone, which does not count as a preemption.
            by: id of the request that it happens for, where there is one.
        """
        if seq.owner.beams is not None:
            seq = self._collapse(seq.owner.beams)
        assert seq.lease is not None
        if seq.history is not None and cause is not None:
            seq.history.preempted(self.clock(), cause, seq.computed, by)
        self._keep_state(seq)
        lost = seq.computed
        seq.lease.close()
        seq.forget_progress()
        seq.move_to(Status.PREEMPTED)
        self.running.remove(seq)
        self.queue_of(seq).push(seq)
        if seq.on_worker:
            self.preempted_to_send.append(seq.seq_id)
        if cause is not None:
            seq.preemptions += 1
            seq.lost = lost
            self.preemptions += 1

    def _collapse(self, group: BeamGroup) -> Sequence:
        """End the sequences of all beams but the first, which is returned. `sched.beams` makes new
        ones once it has computed its tokens again."""
        group.results.clear()
        leader = group.leader
        for beam in group.live[1:]:
            if beam.seq.status is Status.RUNNING:
                self.retire(beam.seq)
                shared = self.memory.shareable(common(beam.seq.tokens, leader.tokens))
                full = shared // self.memory.block_size
                group.reserved += self.memory.blocks_for(len(beam.seq.tokens)) - full
        return leader

    def drop_slice(self, seq: Sequence) -> None:
        """Discard a partly computed chunk and its blocks; it will be computed from layer 0."""
        assert seq.lease is not None
        seq.slice = None
        seq.lease.truncate(self.memory.blocks_for(seq.planned))

    def retire(self, seq: Sequence) -> None:
        """End the sequence: free its blocks now, and notify the executor with the next plan."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        else:
            self.queue_of(seq).remove(seq)
            self.forks.pop(seq.seq_id, None)
            if self.bringing is not None:
                self.bringing.drop(seq)
        self._keep_state(seq)
        if seq.lease is not None:
            seq.lease.close()
            seq.forget_progress()
        seq.move_to(Status.FINISHED)
        if seq.on_worker:
            self.finished_to_send.append(seq.seq_id)

    def _keep_state(self, seq: Sequence) -> None:
        """Of a recurrent model: the latest state of a stream that leaves is one that is kept."""
        if seq.output_snapshot is not None and self.bringing is not None:
            self.bringing.tiers.state_published(seq.output_snapshot, leaves=True)

    def check(self) -> None:
        """Verify the invariants.

        Raises:
            AssertionError: one is violated (a bug in Tidemill).
        """
        self.memory.check()
        for line in self.lines:
            line.tenants.check()
        orders = [seq.order for seq in self.running]
        assert orders == sorted(orders), "running sequences are out of order"
        alone = max((group.search.width for group in self.groups if group.running), default=0)
        most = max(self.limits.max_num_seqs, alone)
        assert len(self.running) <= most, "too many sequences run"
        for seq in self.running:
            assert seq.status is Status.RUNNING and seq not in self.queue_of(seq)
            assert seq.lease is not None, f"running sequence {seq.seq_id} holds no blocks"
            assert seq.computed <= seq.planned <= seq.known
            ahead = seq.planned + seq.verifying + (seq.slice.tokens if seq.slice else 0)
            assert ahead <= seq.lease.capacity
            assert seq.lease.capacity - ahead < self.memory.block_size, "unused block held"
        for seq in (seq for line in self.lines for seq in line.queue):
            assert seq.background == (seq in self.lines[True].queue), "it waits in the wrong line"
            assert seq.status in (Status.WAITING, Status.PREEMPTED)
            held = seq.lease is not None
            assert held == (seq.seq_id in self.forks), "only forks wait with blocks"
            assert held or seq.computed == seq.planned == seq.published == 0


def _together(one: Sequence, other: Sequence | None) -> bool:
    """They are the same, or beams of one search: preempted together."""
    if one is other:
        return True
    return other is not None and one.owner is other.owner and one.owner.beams is not None


def _is_planned(seq: Sequence, planned: set[int]) -> bool:
    """It, or a beam of the same search, has a row in the plan."""
    if seq.owner.beams is None:
        return seq.seq_id in planned
    return any(beam.seq.seq_id in planned for beam in seq.owner.beams.live)


def common(one: list[int], other: list[int]) -> int:
    """Length of the longest common prefix of two lists of tokens."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))
