"""WaitingQueue: per-tenant priority queues of sequences to admit, O(log n) per operation."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tidemill.sched.sequence import OrderKey, Sequence


class WaitingQueue:
    """Sequences waiting to be admitted, sorted per tenant by `Sequence.order`.

    It defines no order between tenants. Removal from the middle is lazy: an entry whose sequence is
    no longer in `_members` is skipped when it reaches the top.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[OrderKey, int]]] = {}
        self._waiting: dict[str, int] = {}
        self._members: dict[int, Sequence] = {}
        self._tokens = 0
        self._counted: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """The members, in no particular order."""
        return iter(self._members.values())

    def __contains__(self, seq: Sequence) -> bool:
        return seq.seq_id in self._members

    @property
    def tokens(self) -> int:
        """Known tokens of all members, as counted when they were pushed."""
        return self._tokens

    def push(self, seq: Sequence) -> None:
        """Add a sequence; its position depends on its order, not on when it is pushed."""
        assert seq.seq_id not in self._members, f"sequence {seq.seq_id} is already queued"
        name = seq.owner.request.tenant
        self._members[seq.seq_id] = seq
        self._waiting[name] = self._waiting.get(name, 0) + 1
        self._counted[seq.seq_id] = len(seq.tokens)
        self._tokens += len(seq.tokens)
        heapq.heappush(self._heaps.setdefault(name, []), (seq.order, seq.seq_id))

    def heads(self) -> Iterator[tuple[str, Sequence]]:
        """The name and the first sequence of every tenant that has members."""
        for name in self._heaps:
            seq = self.peek(name)
            assert seq is not None, "a tenant without members has a heap"
            yield name, seq

    def peek(self, tenant: str) -> Sequence | None:
        """The tenant's first sequence, or None."""
        heap = self._heaps.get(tenant, [])
        while heap:
            seq = self._members.get(heap[0][1])
            if seq is not None:
                return seq
            heapq.heappop(heap)
        return None

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence; one that is not queued is ignored."""
        if self._members.pop(seq.seq_id, None) is None:
            return
        self._tokens -= self._counted.pop(seq.seq_id)
        name = seq.owner.request.tenant
        self._waiting[name] -= 1
        if self._waiting[name] == 0:
            del self._waiting[name], self._heaps[name]
            return
        heap = self._heaps[name]
        # A sequence pushed again would match its stale entry; remove it now where that is cheap.
        if heap[0][1] == seq.seq_id:
            heapq.heappop(heap)
        if len(heap) > 2 * self._waiting[name] + 16:
            heap[:] = [entry for entry in heap if entry[1] in self._members]
            heapq.heapify(heap)
