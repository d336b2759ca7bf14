"""AdapterSlots: which adapters are in memory, and which leave it for others.

What is loaded together is one entry: an adapter, or several that a request adds up, by the key of
`contract.request.adapters_key`. Requests refer to entries; one without references stays until its
memory is needed, the one used least recently leaves first, and a pinned one stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.base.errors import ErrorKind, TidemillError


@dataclass(slots=True)
class _Entry:
    """Attributes:
    slot: from 1 on.
    nbytes: bytes that it takes.
    references: requests that use it, and loads in progress.
    pinned: it stays.
    ready: it is loaded, and takes references.
    draining: it takes no new references, so that another's load gets its memory.
    """

    slot: int
    nbytes: int
    references: int = 1
    pinned: bool = False
    ready: bool = False
    draining: bool = False


class AdapterSlots:
    """See the module docstring.

    Args:
        budget: bytes that all entries may take.
        slots: the most entries.
    """

    def __init__(self, budget: int, slots: int) -> None:
        self.budget = budget
        self._free = list(range(slots, 0, -1))
        self._entries: dict[str, _Entry] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes that the entries take."""
        return sum(entry.nbytes for entry in self._entries.values())

    @property
    def references(self) -> int:
        """References to all entries."""
        return sum(entry.references for entry in self._entries.values())

    def find(self, key: str) -> int | None:
        """The slot of an entry that takes references, with one more to it; None: not loaded."""
        entry = self._entries.get(key)
        if entry is None or entry.draining or not entry.ready:
            return None
        entry.references += 1
        self._entries[key] = self._entries.pop(key)  # used last
        return entry.slot

    def make_room(self, nbytes: int) -> list[int] | None:
        """Remove unreferenced entries until so many bytes more fit.

        Returns:
            The slots to unload. None: references must be given back first; then the entries whose
            memory is needed take no new ones, so that this will succeed.

        Raises:
            TidemillError: RESOURCE if they never fit.
        """
        self.stay()
        movable = [key for key, entry in self._entries.items() if not entry.pinned]
        idle = [key for key in movable if not self._entries[key].references]
        if (leaving := self._enough(idle, nbytes)) is not None:
            return [self._remove(key) for key in leaving]
        if (leaving := self._enough(movable, nbytes)) is None:
            raise self._too_little(nbytes)
        for key in leaving:
            self._entries[key].draining = True
        return None

    def shrink(self, nbytes: int) -> list[int]:
        """Remove unreferenced entries until the others are within the budget, or none is left;
        returns the slots to unload.

        Args:
            nbytes: of the latest entry.

        Raises:
            TidemillError: RESOURCE if it never fits.
        """
        pinned = sum(entry.nbytes for entry in self._entries.values() if entry.pinned)
        if max(nbytes, pinned) > self.budget:
            raise self._too_little(nbytes)
        idle = [k for k, e in self._entries.items() if not (e.references or e.pinned)]
        return [self._remove(key) for key in idle if self.nbytes > self.budget]

    def stay(self) -> None:
        """No entry is to leave for another's sake any more."""
        for entry in self._entries.values():
            entry.draining = False

    def _enough(self, candidates: list[str], nbytes: int) -> list[str] | None:
        """The first of these entries whose removal is enough for so many bytes more; None: all of
        them are not."""
        needed, leaving = self.nbytes + nbytes - self.budget, list[str]()
        for key in candidates:
            if needed <= 0 and (self._free or leaving):
                break
            leaving.append(key)
            needed -= self._entries[key].nbytes
        return leaving if needed <= 0 and (self._free or leaving) else None

    def _too_little(self, nbytes: int) -> TidemillError:
        pinned = sum(entry.nbytes for entry in self._entries.values() if entry.pinned)
        held = f", of which pinned ones take {pinned / 2**20:.1f}" if pinned else ""
        return TidemillError(
            ErrorKind.RESOURCE,
            f"the adapter takes {nbytes / 2**20:.1f} MiB, and all adapters may take "
            f"{self.budget / 2**20:.1f}{held}: give more --adapter-memory",
            param="adapter_memory",
        )

    def add(self, key: str, nbytes: int, *, pinned: bool = False) -> int:
        """A new entry with one reference, after `make_room`, that will be `loaded`; returns its
        slot."""
        slot = self._free.pop()
        self._entries[key] = _Entry(slot, nbytes, pinned=pinned)
        return slot

    def loaded(self, key: str, known_as: str, nbytes: int) -> bool:
        """An entry was loaded: its bytes and its key are known now. False: another entry is the
        same, and this one must be discarded."""
        if key != known_as and known_as in self._entries:
            return False
        entry = self._entries.pop(key)
        entry.nbytes, entry.ready = nbytes, True
        self._entries[known_as] = entry
        return True

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def release(self, key: str) -> None:
        """Give a reference back."""
        self._entries[key].references -= 1

    def drop(self, digest: str) -> list[int]:
        """Entries with an adapter are not needed any more: the slots to unload now. Those with
        references leave as soon as memory is needed."""
        found = [key for key in self._entries if digest in key]
        for key in found:
            self._entries[key].pinned = False
            # Next to leave.
            self._entries = {key: self._entries.pop(key), **self._entries}
        return [self._remove(key) for key in found if not self._entries[key].references]

    def discard(self, key: str) -> int:
        """Remove an entry whatever refers to it; returns its slot."""
        return self._remove(key)

    def clear(self) -> list[int]:
        """Remove all entries without references, pinned ones too; returns the slots to unload."""
        return [self._remove(key) for key, e in list(self._entries.items()) if not e.references]

    def _remove(self, key: str) -> int:
        slot = self._entries.pop(key).slot
        self._free.append(slot)
        return slot
