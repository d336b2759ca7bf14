"""FlightLog: memory shared by an engine and its supervisor, readable after a crash.

The engine records the requests whose rows it is about to compute, and a heartbeat counter that
advances while it makes progress. The supervisor reads both when the engine stalls or dies. It is
anonymous shared memory behind a file descriptor: it uses no disk space, has no name, and is freed
with its last process.

Layout in 64-bit words: the heartbeat counter, then three slots (two for the steps in flight, one
for requests outside of steps), each: state, step, count, and `count` request keys.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Collection
from itertools import islice

_PULSE, _SLOTS = 0, 8
_PREPARING = 2
_STATE, _STEP, _COUNT, _KEYS = 0, 1, 2, 3
_EMPTY, _COMPUTING, _DONE = 0, 1, 2
_WORD = 8


def request_key(request_id: str) -> int:
    """The key of a request in the log: 63 bits of its id's digest, never 0."""
    digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


class FlightLog:
    """One process's mapping of the shared memory.

    Args:
        descriptor: file descriptor of the shared memory; this object takes ownership.
        capacity: maximum rows of a step.

    Attributes:
        descriptor: to pass to the engine process.
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
        """A new log of zeros. Raises OSError if the system has no memory (or disk) for it."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("tidemill-flight-log", os.MFD_CLOEXEC)
        else:
            descriptor, path = tempfile.mkstemp(prefix="tidemill-flight-log-")
            os.unlink(path)
        try:
            # Written rather than truncated to size, so that a lack of memory fails here.
            os.write(descriptor, bytes(_size(capacity)))
            return cls(descriptor, capacity)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Unmap the memory and close the descriptor."""
        self._words.release()
        self._memory.close()
        os.close(self.descriptor)

    # -- the engine's side -------------------------------------------------------------------

    def beat(self, pulse: int) -> None:
        """Store the heartbeat counter; a changed value means that the engine makes progress."""
        self._words[_PULSE] = pulse & (2**63 - 1)

    def enter(self, step: int, keys: Collection[int]) -> None:
        """Record that a step of these requests begins."""
        self._write(step % 2, step, keys)

    def leave(self, step: int) -> None:
        """Record that the step has ended, with a result or an error."""
        self._words[self._base(step % 2) + _STATE] = _DONE

    def set_preparing(self, keys: Collection[int]) -> None:
        """Record the requests that are being admitted or whose programs are being compiled."""
        self._write(_PREPARING, 0, keys)
        if not keys:
            self._words[self._base(_PREPARING) + _STATE] = _EMPTY

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
        """The engine's heartbeat counter."""
        return self._words[_PULSE]

    def suspects(self) -> set[int]:
        """Keys of the requests that may have crashed the engine.

        These are the requests in the steps in flight, those admitted or compiled concurrently, and
        those of the last finished step: handling its results may crash as well, since its outputs
        are sent while the next step computes.
        """
        words = self._words
        slots = [self._base(slot) for slot in range(3)]
        suspect_slots = [base for base in slots if words[base + _STATE] == _COMPUTING]
        done = [base for base in slots if words[base + _STATE] == _DONE]
        suspect_slots += sorted(done, key=lambda base: words[base + _STEP])[-1:]
        found: set[int] = set()
        for base in suspect_slots:
            count = min(words[base + _COUNT], self.capacity)
            found.update(words[base + _KEYS : base + _KEYS + count])
        return found

    def clear(self) -> None:
        """Reset the log before the next engine starts."""
        for slot in range(3):
            self._words[self._base(slot) + _STATE] = _EMPTY
        self._words[_PULSE] = 0


def _size(capacity: int) -> int:
    return _WORD * (_SLOTS + 3 * (_KEYS + capacity))
