"""StateTable: the recurrent states that a sequence's next row reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

EMPTY = -1
STATES_PER_SEQUENCE = 2


@dataclass(slots=True)
class _Held:
    """States of a sequence: two, and between a row with drafts and its result one per draft.

    Attributes:
        states: their indices.
        covers: how many tokens each covers.
    """

    states: list[int]
    covers: list[int]

    def forget(self) -> None:
        """No state covers anything any more."""
        self.covers = [EMPTY] * len(self.states)


class StateTable:
    """Double-buffered states: each step reads one state of a sequence and writes the other.

    A failed step leaves the state it read intact, so nothing has to be undone: a row repeated at an
    earlier position finds the state that covers it.

    A row that verifies drafts writes a state behind its known tokens and one behind each draft.
    When it is known how many came true, the state behind those is kept.

    Of the states, the sequences' come first, then snapshots, which the scheduler numbers from 0,
    then those behind drafts.

    Args:
        sequences: how many may hold states at once.
        snapshots: how many there are.
        drafts: how many drafts may be verified at once.
    """

    def __init__(self, sequences: int, snapshots: int = 0, drafts: int = 0) -> None:
        first = self._snapshots = STATES_PER_SEQUENCE * sequences
        self._free = [[n, n + 1] for n in range(first - STATES_PER_SEQUENCE, -1, -2)]
        self._spare = list(range(first + snapshots, first + snapshots + drafts))
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

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
        if seq_id not in self._held:
            if not self._free:
                raise RuntimeError("more sequences run than there are recurrent states")
            self._held[seq_id] = _Held(self._free.pop(), [EMPTY, EMPTY])
        self.settle(seq_id, start)
        held = self._held[seq_id]
        if start and start in held.covers:
            read = held.covers.index(start)
            held.covers[1 - read] = end
            return held.states[read], held.states[1 - read]
        held.forget()
        if start == 0:
            read = EMPTY
        elif source != EMPTY:
            read = self.snapshot(source)
        elif fork_of != EMPTY:
            # Whether the other sequence's row stands before or after this one: it keeps what it
            # reads.
            of = self._held[fork_of]
            read = of.states[of.covers.index(start)]
        else:
            raise RuntimeError(f"no recurrent state of sequence {seq_id} covers {start} tokens")
        held.covers[0] = end
        return read, held.states[0]

    def draft(self, seq_id: int, end: int, count: int) -> list[int]:
        """The states written behind each of a row's drafts, which follow its known tokens up to
        position `end`.

        Raises:
            RuntimeError: there are not that many (a defect of ours).
        """
        if count > len(self._spare):
            raise RuntimeError("more drafts are verified than there are recurrent states")
        taken = [self._spare.pop() for _ in range(count)]
        held = self._held[seq_id]
        held.states += taken
        held.covers += range(end + 1, end + 1 + count)
        return taken

    def settle(self, seq_id: int, position: int) -> None:
        """What comes next starts at this position: the state that covers it is kept with one other.
        A sequence without states is ignored."""
        held = self._held.get(seq_id)
        if held is None or len(held.states) == STATES_PER_SEQUENCE:
            return
        kept = held.covers.index(position) if position in held.covers else 0
        order = [kept, *(i for i in range(len(held.states)) if i != kept)]
        states, covers = [held.states[i] for i in order], [held.covers[i] for i in order]
        held.states, held.covers = states[:STATES_PER_SEQUENCE], covers[:STATES_PER_SEQUENCE]
        self._spare += states[STATES_PER_SEQUENCE:]

    def release(self, seq_id: int) -> None:
        """The sequence's states are free; one that has none is ignored."""
        held = self._held.pop(seq_id, None)
        if held is not None:
            self._free.append(held.states[:STATES_PER_SEQUENCE])
            self._spare += held.states[STATES_PER_SEQUENCE:]
