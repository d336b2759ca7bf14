"""FlightLog: a page of memory shared by an engine and its supervisor, readable after a crash.

The engine notes whose rows it is about to compute, and a number that changes while it is alive and
working; the supervisor reads both when the engine says nothing any more. The page is anonymous
memory behind a file descriptor: it takes no disk, has no name, and is gone with its last process.

Layout in 64-bit words: the pulse, then three slots (two steps may be outstanding; one for what
happens beside the steps), each: state, step, count, and `count` request keys.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Collection
from itertools import islice

_PULSE, _SLOTS = 0, 8
_BESIDE = 2
_STATE, _STEP, _COUNT, _KEYS = 0, 1, 2, 3
_EMPTY, _COMPUTING, _DONE = 0, 1, 2
_WORD = 8


def request_key(request_id: str) -> int:
    """What names a request in the log: 63 bits of its id's digest, never 0."""
    digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


class FlightLog:
    """One side's view of the page.

    Args:
        descriptor: of the shared memory; owned by this object from now on.
        capacity: rows a step may have.

    Attributes:
        descriptor: to hand to the engine process.
        capacity: as given.
    """

    def __init__(self, descriptor: int, capacity: int) -> None:
        self.descriptor = descriptor
        self.capacity = capacity
        self._memory = mmap.mmap(descriptor, _size(capacity))
        self._words = memoryview(self._memory).cast("Q")
        self._stride = _KEYS + capacity

    @classmethod
    def create(cls, capacity: int) -> FlightLog:
        """A new page of zeros. Raises OSError when the system has no memory (or disk) for it."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("tidemill-flight-log", os.MFD_CLOEXEC)
        else:
            descriptor, path = tempfile.mkstemp(prefix="tidemill-flight-log-")
            os.unlink(path)
        try:
            # Written, not truncated to size: memory that is missing must be missed here.
            os.write(descriptor, bytes(_size(capacity)))
            return cls(descriptor, capacity)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._memory.close()
        os.close(self.descriptor)

    # -- the engine's side -------------------------------------------------------------------

    def beat(self, pulse: int) -> None:
        """Show that the engine lives: a number other than the last one."""
        self._words[_PULSE] = pulse & (2**63 - 1)

    def enter(self, step: int, keys: Collection[int]) -> None:
        """A step is about to be computed for these requests."""
        self._write(step % 2, step, keys)

    def leave(self, step: int) -> None:
        """The step has ended, well or with an error."""
        self._words[self._base(step % 2) + _STATE] = _DONE

    def beside(self, keys: Collection[int]) -> None:
        """These requests are being taken in, or have their programs compiled."""
        self._write(_BESIDE, 0, keys)
        if not keys:
            self._words[self._base(_BESIDE) + _STATE] = _EMPTY

    def _write(self, slot: int, step: int, keys: Collection[int]) -> None:
        words, base = self._words, self._base(slot)
        words[base + _STATE] = _EMPTY
        count = 0
        for count, key in enumerate(islice(keys, self.capacity), 1):
            words[base + _KEYS + count - 1] = key
        words[base + _STEP] = step
        words[base + _COUNT] = count
        words[base + _STATE] = _COMPUTING

    def _base(self, slot: int) -> int:
        return _SLOTS + slot * self._stride

    # -- the supervisor's side ---------------------------------------------------------------

    @property
    def pulse(self) -> int:
        """The engine's latest number."""
        return self._words[_PULSE]

    def suspects(self) -> set[int]:
        """Keys of the requests that may have ended an engine that is no more.

        Those in steps that were being computed, those beside them, and those of the step before:
        what follows a step can fail as well, and its outputs are told while the next one computes.
        """
        words = self._words
        slots = [self._base(slot) for slot in range(3)]
        guilty = [base for base in slots if words[base + _STATE] == _COMPUTING]
        done = [base for base in slots if words[base + _STATE] == _DONE]
        guilty += sorted(done, key=lambda base: words[base + _STEP])[-1:]
        found: set[int] = set()
        for base in guilty:
            count = min(words[base + _COUNT], self.capacity)
            found.update(words[base + _KEYS : base + _KEYS + count])
        return found

    def clear(self) -> None:
        """Forget the last engine; before the next one starts."""
        for slot in range(3):
            self._words[self._base(slot) + _STATE] = _EMPTY
        self._words[_PULSE] = 0


def _size(capacity: int) -> int:
    return _WORD * (_SLOTS + 3 * (_KEYS + capacity))
