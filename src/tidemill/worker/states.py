"""StateTable: the recurrent states that a sequence's next row reads and writes."""

from __future__ import annotations

EMPTY = -1
STATES_PER_SEQUENCE = 2


class StateTable:
    """Double-buffered states: each step reads one state of a sequence and writes the other.

    A failed step leaves the state it read intact, so nothing has to be undone: a row repeated at an
    earlier position finds the state that covers it.

    Snapshots are stored after the sequences' states; the scheduler numbers them from 0.

    Args:
        sequences: how many may hold states at once.
    """

    def __init__(self, sequences: int) -> None:
        self._snapshots = STATES_PER_SEQUENCE * sequences
        self._free = list(range(sequences - 1, -1, -1))
        self._pair: dict[int, int] = {}
        self._covers: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._pair)

    def snapshot(self, number: int) -> int:
        """The state index of a snapshot."""
        return self._snapshots + number

    def advance(
        self, seq_id: int, start: int, end: int, source: int = EMPTY, fork_of: int = EMPTY
    ) -> tuple[int, int]:
        """(state read, state written) of a row that computes positions start .. end - 1; `source`
        is the snapshot of what stands before it, and `fork_of` the sequence that has a state of
        it: read where no state of its own covers that.

        Raises:
            RuntimeError: no state covers what stands before the row, or too many sequences run (a
                defect of ours).
        """
        if seq_id not in self._pair:
            if not self._free:
                raise RuntimeError("more sequences run than there are recurrent states")
            self._pair[seq_id] = self._free.pop()
            self._covers[seq_id] = [EMPTY, EMPTY]
        first, covers = STATES_PER_SEQUENCE * self._pair[seq_id], self._covers[seq_id]
        if start == 0:
            covers[:] = [end, EMPTY]
            return EMPTY, first
        if start not in covers and source != EMPTY:
            covers[:] = [end, EMPTY]
            return self.snapshot(source), first
        if start not in covers and fork_of != EMPTY:
            # Whether the other sequence's row stands before or after this one: it keeps what it
            # reads.
            read = STATES_PER_SEQUENCE * self._pair[fork_of] + self._covers[fork_of].index(start)
            covers[:] = [end, EMPTY]
            return read, first
        if start not in covers:
            raise RuntimeError(f"no recurrent state of sequence {seq_id} covers {start} tokens")
        read = covers.index(start)
        covers[1 - read] = end
        return first + read, first + 1 - read

    def release(self, seq_id: int) -> None:
        """The sequence's states are free; one that has none is ignored."""
        pair = self._pair.pop(seq_id, None)
        if pair is not None:
            del self._covers[seq_id]
            self._free.append(pair)
