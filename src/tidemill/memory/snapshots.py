"""SnapshotIndex: recurrent states stored at block boundaries, by the key of the block before.

The KV blocks of a prefix do not contain the state of recurrent layers; it is stored separately.
Only some boundaries have a snapshot (a state is as large as the blocks of hundreds of tokens), and
a prefix can be reused up to the last boundary that has one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from tidemill.memory.prefix import BlockKey


class SnapshotWatcher(Protocol):
    """Hears what becomes of kept states, before their memory is written again."""

    def state_evicted(self, key: BlockKey) -> None:
        """The state at the end of this block is lost."""


class SnapshotIndex:
    """Maps block boundaries to the executor's snapshot slots, with LRU eviction.

    A slot is free; reserved, from the plan of the step that writes it to its commit; or kept under
    the key of the block that ends at its boundary. A kept slot that steps in flight read is pinned
    and not evicted before they have ended.

    Args:
        slots: number of slots.

    Attributes:
        watcher: hears of what is lost; None: nobody does.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._kept: OrderedDict[bytes, tuple[BlockKey, int]] = OrderedDict()
        self._reserved: dict[bytes, int] = {}
        self._pins: dict[int, int] = {}
        self._orphans: set[int] = set()
        self.watcher: SnapshotWatcher | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: BlockKey) -> bool:
        kept = self._kept.get(key.digest)
        return kept is not None and kept[0] == key

    def slot_after(self, digest: bytes) -> tuple[BlockKey, int] | None:
        """The block with this digest and the slot of the state behind it; None without one."""
        return self._kept.get(digest)

    def next_evicted(self, most: int) -> list[BlockKey]:
        """Of the next `most` reservations, the boundaries that give their slots."""
        most -= len(self._free)
        found: list[BlockKey] = []
        for key, slot in self._kept.values():
            if len(found) >= most:
                break
            if slot not in self._pins:
                found.append(key)
        return found

    def use(self, key: BlockKey) -> int:
        """Pin the slot of a stored boundary; call `unpin` after the step that reads it."""
        _, slot = self._kept[key.digest]
        self._kept.move_to_end(key.digest)
        self._pins[slot] = self._pins.get(slot, 0) + 1
        return slot

    def unpin(self, slot: int) -> None:
        """Drop a pin after the step that read the slot."""
        self._pins[slot] -= 1
        if not self._pins[slot]:
            del self._pins[slot]
            if slot in self._orphans:
                self._orphans.remove(slot)
                self._free.append(slot)

    def reserve(self, key: BlockKey) -> int | None:
        """Reserve a slot for the state at a boundary; `keep` or `cancel` must follow. None if it is
        already stored or reserved, or if every slot is in use."""
        if key.digest in self._kept or key.digest in self._reserved:
            return None
        if not self._free:
            oldest = self.next_evicted(1)
            if not oldest:
                return None
            self.forget(oldest[0])
        slot = self._free.pop()
        self._reserved[key.digest] = slot
        return slot

    def keep(self, key: BlockKey) -> None:
        """The step that writes the boundary's slot is committed."""
        self._kept[key.digest] = key, self._reserved.pop(key.digest)

    def cancel(self, key: BlockKey) -> None:
        """The step was rolled back: free the reserved slot."""
        self._free.append(self._reserved.pop(key.digest))

    def forget(self, key: BlockKey) -> None:
        """Remove a boundary whose block is evicted or not needed; unknown ones are ignored."""
        if key not in self:
            return
        slot = self._kept.pop(key.digest)[1]
        if self.watcher is not None:
            self.watcher.state_evicted(key)
        if slot in self._pins:
            self._orphans.add(slot)
        else:
            self._free.append(slot)

    def check(self) -> None:
        """Verify that every slot is in exactly one state.

        Raises:
            AssertionError: one is not (a bug in Tidemill).
        """
        kept = [slot for _, slot in self._kept.values()]
        places = [*self._free, *kept, *self._reserved.values(), *self._orphans]
        assert sorted(places) == list(range(self._slots)), "a snapshot slot is leaked or duplicated"
        assert self._orphans <= self._pins.keys(), "an orphaned snapshot slot without a pin"
        assert set(self._pins) <= {*kept, *self._orphans}, "a pinned slot holds no snapshot"
