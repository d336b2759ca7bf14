"""The scheduler's books: who runs, who waits, who must make room."""

from __future__ import annotations

from bisect import insort

from tidemill.base.clock import wall
from tidemill.contract.request import Status
from tidemill.memory.lease import KVMemory
from tidemill.sched.policy import Limits
from tidemill.sched.queue import WaitingQueue
from tidemill.sched.sequence import Sequence


class State:
    """Sequences by what they are doing, and the counters over them.

    Invariants: `running` is sorted by order; a sequence is in `running`, in `queue` or held by its
    request, never in two; running sequences have a lease, waiting ones have none but for `forks`,
    which share their leader's until they run.
    """

    def __init__(self, memory: KVMemory, limits: Limits) -> None:
        self.memory = memory
        self.limits = limits
        self.running: list[Sequence] = []
        self.queue = WaitingQueue()
        self.forks: dict[int, Sequence] = {}
        self.tell_preempted: list[int] = []
        self.tell_finished: list[int] = []
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def start(self, seq: Sequence) -> None:
        """A waiting sequence runs."""
        seq.move_to(Status.RUNNING)
        self.forks.pop(seq.seq_id, None)
        insort(self.running, seq, key=lambda s: s.order)
        if seq.first_scheduled == 0.0:
            seq.first_scheduled = wall()

    def note_hit(self, seq: Sequence, cached: int) -> None:
        """Count a first admission's prefix hit; resumptions and forks are not hits of a client."""
        owner = seq.owner
        if owner.cached_tokens is None:
            owner.cached_tokens = min(cached, seq.prompt_len)
            self.prompt_tokens += seq.prompt_len
            self.cached_tokens += owner.cached_tokens

    def blocks_promised(self) -> int:
        """Blocks (per group) that running sequences need for tokens they know already."""
        blocks_for = self.memory.blocks_for
        return sum(
            max(0, blocks_for(seq.known) - seq.lease.num_blocks)
            for seq in self.running
            if seq.lease is not None
        )

    def victim(self, planned: set[int]) -> Sequence | None:
        """Who gives its blocks up: the last in order that has no row yet."""
        for seq in reversed(self.running):
            if seq.seq_id not in planned:
                return seq
        return None

    def strip_waiting(self, except_for: Sequence | None = None) -> bool:
        """Take the shared blocks from one waiting fork; it will find or compute them itself."""
        for seq in self.forks.values():
            if seq is not except_for and seq.lease is not None:
                del self.forks[seq.seq_id]
                seq.lease.close()
                seq.forget_progress()
                return True
        return False

    def add_fork(self, seq: Sequence, leader: Sequence) -> None:
        """A choice joins the queue; its leader's blocks, if there are any, are shared with it.

        All of the prompt but its last token is taken over: computing that one gives the choice
        logits of its own to sample from.
        """
        shared = seq.prompt_len - 1
        if leader.lease is not None and leader.computed >= shared:
            block_size = self.memory.block_size
            seq.lease = leader.lease.fork(shared)
            seq.computed = seq.planned = shared
            seq.published = shared // block_size
            seq.keys = leader.keys[: seq.published]
            self.forks[seq.seq_id] = seq
        self.queue.push(seq)

    def preempt(self, seq: Sequence, *, counted: bool = True) -> None:
        """Free a running sequence's blocks; it waits, at its old place in order.

        Args:
            seq: who.
            counted: False when an admission is undone, which is nobody's preemption.
        """
        assert seq.lease is not None
        seq.lease.close()
        seq.forget_progress()
        seq.move_to(Status.PREEMPTED)
        self.running.remove(seq)
        self.queue.push(seq)
        if seq.on_worker:
            self.tell_preempted.append(seq.seq_id)
        if counted:
            seq.preemptions += 1
            self.preemptions += 1

    def retire(self, seq: Sequence) -> None:
        """The sequence has ended: free its blocks now, tell the executor with the next plan."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        else:
            self.queue.remove(seq)
            self.forks.pop(seq.seq_id, None)
        if seq.lease is not None:
            seq.lease.close()
            seq.forget_progress()
        seq.move_to(Status.FINISHED)
        if seq.on_worker:
            self.tell_finished.append(seq.seq_id)

    def check(self) -> None:
        """Verify the invariants.

        Raises:
            AssertionError: one does not hold (a defect of ours).
        """
        self.memory.check()
        orders = [seq.order for seq in self.running]
        assert orders == sorted(orders), "running sequences are out of order"
        assert len(self.running) <= self.limits.max_num_seqs, "too many sequences run"
        for seq in self.running:
            assert seq.status is Status.RUNNING and seq not in self.queue
            assert seq.lease is not None, f"running sequence {seq.seq_id} holds no blocks"
            assert seq.computed <= seq.planned <= seq.known
            assert seq.planned <= seq.lease.capacity
            assert seq.lease.capacity - seq.planned < self.memory.block_size, "unused block held"
        for seq in self.queue:
            assert seq.status in (Status.WAITING, Status.PREEMPTED)
            held = seq.lease is not None
            assert held == (seq.seq_id in self.forks), "only forks wait with blocks"
            assert held or seq.computed == seq.planned == seq.published == 0
