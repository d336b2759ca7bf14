"""SnapshotIndex: recurrent states kept at block boundaries, found again by the block they end with.

A prefix's blocks say nothing of what recurrent layers made of it; the state at its end does. Only
some boundaries have one (a state is as large as hundreds of tokens' blocks), and a prefix is found
up to the last boundary that does.
"""

from __future__ import annotations

from collections import OrderedDict

from tidemill.memory.prefix import BlockKey


class SnapshotIndex:
    """Which slot of the executor holds the state at which boundary; the least recently used goes.

    A slot is free; reserved, from the plan of the step that writes it to its commit; or kept under
    the identity of the block that ends at its boundary. A kept one that outstanding steps read is
    pinned, and not given to anybody else before they are over.

    Args:
        slots: how many there are.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._kept: OrderedDict[bytes, tuple[BlockKey, int]] = OrderedDict()
        self._reserved: dict[bytes, int] = {}
        self._pins: dict[int, int] = {}
        self._orphans: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: BlockKey) -> bool:
        kept = self._kept.get(key.digest)
        return kept is not None and kept[0] == key

    def use(self, key: BlockKey) -> int:
        """Pin the slot of a boundary that is there; `unpin` when the step that reads it is over."""
        _, slot = self._kept[key.digest]
        self._kept.move_to_end(key.digest)
        self._pins[slot] = self._pins.get(slot, 0) + 1
        return slot

    def unpin(self, slot: int) -> None:
        """One step less reads the slot."""
        self._pins[slot] -= 1
        if not self._pins[slot]:
            del self._pins[slot]
            if slot in self._orphans:
                self._orphans.remove(slot)
                self._free.append(slot)

    def reserve(self, key: BlockKey) -> int | None:
        """A slot for the state at a boundary, `keep` or `cancel` to follow. None when it is there
        or on its way, or when every slot is in use."""
        if key.digest in self._kept or key.digest in self._reserved:
            return None
        if not self._free:
            oldest = next((k for k, (_, s) in self._kept.items() if s not in self._pins), None)
            if oldest is None:
                return None
            self._free.append(self._kept.pop(oldest)[1])
        slot = self._free.pop()
        self._reserved[key.digest] = slot
        return slot

    def keep(self, key: BlockKey) -> None:
        """The step that writes the boundary's slot is committed."""
        self._kept[key.digest] = key, self._reserved.pop(key.digest)

    def cancel(self, key: BlockKey) -> None:
        """It is not."""
        self._free.append(self._reserved.pop(key.digest))

    def forget(self, key: BlockKey) -> None:
        """The boundary's block is gone, or nobody will look for it; unknown ones are ignored."""
        if key not in self:
            return
        slot = self._kept.pop(key.digest)[1]
        if slot in self._pins:
            self._orphans.add(slot)
        else:
            self._free.append(slot)

    def check(self) -> None:
        """Verify that every slot is in one place.

        Raises:
            AssertionError: one is not (a defect of ours).
        """
        kept = [slot for _, slot in self._kept.values()]
        places = [*self._free, *kept, *self._reserved.values(), *self._orphans]
        assert sorted(places) == list(range(self._slots)), "a snapshot slot is lost or twice there"
        assert self._orphans <= self._pins.keys(), "an orphaned snapshot that nobody reads"
        assert set(self._pins) <= {*kept, *self._orphans}, "a pinned slot holds no snapshot"
