"""AdapterGate: requests with adapters wait here until theirs are in memory.

A thread reads, verifies and loads one adapter after another beside the running steps. Which are in
memory is decided in `memory.adapter_slots`. All methods run in the engine's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger, summary
from tidemill.contract.request import AdapterUse, adapters_key
from tidemill.contract.wire import AdapterInfo
from tidemill.engine.known_adapters import KnownAdapters
from tidemill.executor.base import Executor
from tidemill.memory.adapter_slots import AdapterSlots

_log = get_logger(__name__)

# (slot of loaded adapters, or why they cannot be loaded).
Granted = Callable[[int, TidemillError | None], None]
Checked = Callable[[AdapterInfo | None, TidemillError | None], None]


class Loader(Protocol):
    """Runs what takes long beside the steps."""

    def submit(self, work: Callable[[], None]) -> None:
        """Run it, after what was submitted before."""

    def close(self) -> None:
        """Run nothing more; what is running ends before this returns."""


class _Thread:
    """A thread that loads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "tidemill-adapters")

    def submit(self, work: Callable[[], None]) -> None:
        """See Loader."""
        self._pool.submit(work)

    def close(self) -> None:
        """See Loader."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True, eq=False)
class _Waiting:
    """Attributes:
    uses, key: the adapters and their key; of a check, whose digest is not known, a name.
    granted: of a request: called once with a slot, and a reference to it, or with an error.
    checked: of a check.
    wanted: False once nobody waits any more.
    """

    uses: tuple[AdapterUse, ...]
    key: str
    granted: Granted | None = None
    checked: Checked | None = None
    wanted: Callable[[], bool] = lambda: True

    def fail(self, error: TidemillError) -> None:
        """Tell whoever waits."""
        if self.granted is not None:
            self.granted(0, error)
        if self.checked is not None:
            self.checked(None, error)


class AdapterGate:
    """See the module docstring.

    Args:
        executor: loads adapters.
        post: runs a function in the engine's thread, soon.
        loader: runs the loads, one after another; None: a thread of its own.

    Attributes:
        known: adapters that were named here.
    """

    def __init__(
        self,
        executor: Executor,
        post: Callable[[Callable[[], None]], None],
        loader: Loader | None = None,
    ) -> None:
        self._executor = executor
        self._post = post
        self._slots = AdapterSlots(*executor.adapter_room())
        self.known = KnownAdapters()
        self._waiting: deque[_Waiting] = deque()
        self._loading = False
        self._loader = loader or _Thread()
        self._checks = 0
        # References of ended requests, and the last step submitted until then.
        self._ended: deque[tuple[str, int]] = deque()

    @property
    def loading(self) -> bool:
        """True while an adapter is read."""
        return self._loading

    def acquire(
        self, uses: tuple[AdapterUse, ...], granted: Granted, wanted: Callable[[], bool]
    ) -> None:
        """Call `granted` with a slot and a reference to it once the adapters are in memory: at once
        if they are.

        Args:
            uses: loaded together; their digests are known.
            granted: see `Granted`.
            wanted: whether the request still waits.
        """
        for use in uses:
            self.known.note(use)
        key = adapters_key(uses)
        if (slot := self._slots.find(key)) is not None:
            granted(slot, None)
            return
        self._waiting.append(_Waiting(uses, key, granted=granted, wanted=wanted))
        self._next()

    def check(self, use: AdapterUse, checked: Checked) -> None:
        """Load an adapter and call `checked` with what it is; it stays while there is room."""
        self._checks += 1
        self._waiting.append(_Waiting((use,), f"?{self._checks}", checked=checked))
        self._next()

    def release(self, uses: tuple[AdapterUse, ...], last_step: int) -> None:
        """Give a reference back once a step has ended: rows up to it may name the slot."""
        self._ended.append((adapters_key(uses), last_step))

    def settle(self, oldest_step: int | None) -> None:
        """Take references back whose last steps have ended.

        Args:
            oldest_step: the oldest one in flight.
        """
        settled = False
        while self._ended and (oldest_step is None or self._ended[0][1] < oldest_step):
            self._slots.release(self._ended.popleft()[0])
            settled = True
        if settled and self._waiting:
            self._next()

    def drop(self, digest: str) -> None:
        """An adapter is not registered any more."""
        self.known.drop(digest)
        self._unload(self._slots.drop(digest))

    def clear(self) -> None:
        """Forget all adapters that no request uses; the next request loads its own again."""
        self._unload(self._slots.clear())

    def close(self) -> None:
        """Stop loading."""
        self._waiting.clear()
        self._loader.close()

    def _unload(self, slots: list[int]) -> None:
        for slot in slots:
            self._executor.unload_adapters(slot)

    def _next(self) -> None:
        """Grant what is in memory, and start the next load if there is room for it, in the order of
        requests."""
        for waiting in [w for w in self._waiting if w.granted is not None]:
            if (slot := self._slots.find(waiting.key)) is not None:
                self._waiting.remove(waiting)
                if waiting.wanted() and waiting.granted is not None:
                    waiting.granted(slot, None)
                else:
                    self._slots.release(waiting.key)
        while self._waiting and not self._loading:
            waiting = self._waiting[0]
            if not waiting.wanted():
                self._waiting.popleft()
                continue
            if waiting.key in self._slots:
                # It was to leave for one that was in front and has ended.
                self._slots.stay()
                self._next()
                return
            try:
                leaving = self._slots.make_room(sum(use.nbytes for use in waiting.uses))
            except TidemillError as error:
                self._waiting.popleft()
                waiting.fail(error)
                continue
            if leaving is None:
                return
            self._unload(leaving)
            self._start(self._waiting.popleft())

    def _start(self, waiting: _Waiting) -> None:
        nbytes = sum(use.nbytes for use in waiting.uses)
        pinned = len(waiting.uses) == 1 and waiting.uses[0].pinned
        slot = self._slots.add(waiting.key, nbytes, pinned=pinned)
        self._loading = True

        def load() -> None:
            info, failure = None, None
            try:
                info = self._executor.load_adapters(slot, waiting.uses)
            except TidemillError as error:
                failure = error
            except MemoryError:
                text = "out of memory while loading an adapter"
                failure = TidemillError(ErrorKind.RESOURCE, text, retryable=True)
            except Exception as error:
                _log.exception("an adapter could not be loaded")
                text = f"the adapter could not be loaded: {summary(error)}"
                failure = TidemillError(ErrorKind.INTERNAL, text)
            self._post(lambda: self._loaded(waiting, slot, info, failure))

        self._loader.submit(load)

    def _loaded(
        self, waiting: _Waiting, slot: int, info: AdapterInfo | None, error: TidemillError | None
    ) -> None:
        self._loading = False
        if info is not None:
            error = self._keep(waiting, info)
        else:
            self._slots.discard(waiting.key)
        if error is not None:
            waiting.fail(error)
        elif waiting.checked is not None:
            if info is not None:
                changed = {"digest": info.digest, "nbytes": info.nbytes}
                self.known.note(msgspec.structs.replace(waiting.uses[0], **changed))
            waiting.checked(info, None)
        elif waiting.wanted() and waiting.granted is not None:
            waiting.granted(slot, None)
        else:
            self._slots.release(waiting.key)
        self._next()

    def _keep(self, waiting: _Waiting, info: AdapterInfo) -> TidemillError | None:
        """Enter what was loaded. An adapter that was only checked stays while there is room for it;
        an error if there never is."""
        key = waiting.key if waiting.checked is None else info.digest
        if not self._slots.loaded(waiting.key, key, info.nbytes):
            self._unload([self._slots.discard(waiting.key)])  # it is in memory already
            return None
        if waiting.checked is None:
            return None
        self._slots.release(key)
        try:
            self._unload(self._slots.shrink(info.nbytes))
        except TidemillError as error:
            self._unload([self._slots.discard(key)])
            return error
        return None
