"""WaitingQueue: who is admitted next, in O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tidemill.sched.sequence import OrderKey, Sequence


class WaitingQueue:
    """Sequences waiting to be admitted, the first in order (`Sequence.order`) first.

    Removal from the middle is lazy: an entry whose sequence is no longer in `_members` is skipped
    when it reaches the top.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, int]] = []
        self._members: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """The members, in no order."""
        return iter(self._members.values())

    def __contains__(self, seq: Sequence) -> bool:
        return seq.seq_id in self._members

    def push(self, seq: Sequence) -> None:
        """Add a sequence; its place follows from its order, not from when it is pushed."""
        assert seq.seq_id not in self._members, f"sequence {seq.seq_id} waits already"
        self._members[seq.seq_id] = seq
        heapq.heappush(self._heap, (seq.order, seq.seq_id))

    def peek(self) -> Sequence | None:
        """The first in order, or None."""
        while self._heap:
            seq = self._members.get(self._heap[0][1])
            if seq is not None:
                return seq
            heapq.heappop(self._heap)
        return None

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out; one that does not wait is ignored."""
        self._members.pop(seq.seq_id, None)
        # A pushed-again sequence would find its stale entry; keep the heap clean when cheap.
        if self._heap and self._heap[0][1] == seq.seq_id:
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._members) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._members]
            heapq.heapify(self._heap)
