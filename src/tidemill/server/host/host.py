"""The models of one server, by name: loaded on demand, kept in use, evicted for others.

A request leases its model (`lease`) for as long as it is answered. Where the model is not open, the
request waits; one task at a time changes what is loaded, by the rules of `switching`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.base.log import get_logger
from tidemill.generation.caller import ANONYMOUS, Caller
from tidemill.server.errors import reject
from tidemill.server.host import switching
from tidemill.server.host.adapters import adapted
from tidemill.server.host.refusals import never_fits, unknown, unusable
from tidemill.server.host.routed import Routed
from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Hosted, Loaded, Loader, Slot, State, Waiter
from tidemill.server.host.switching import (
    Close,
    Evict,
    Load,
    Refuse,
    Reopen,
    Wait,
    next_action,
)

if TYPE_CHECKING:
    from tidemill.server.host.adapter_folders import AdapterFolders
    from tidemill.server.host.versions import Versions

log = get_logger(__name__)

_LATEST = ":latest"
_POLL_SECONDS = 0.02
_NEVER = float("inf")

RETRY_AFTER_SECONDS = 5.0
"""A model whose load failed is not loaded again before; its error is answered at once."""

LOAD_TRIES = 3
"""An engine that ends while it loads is started again, as one that ends later."""

MAX_WAITING = 1024
"""Requests that may wait for models that are not open, over all models."""


class ModelHost:
    """See the module docstring.

    Args:
        budget: bytes for all models together; None: without bound.
        clock: monotonic seconds.

    Attributes:
        budget: as given; may be changed.
        look: called before a name is said to be unknown: it may add and remove models.
        glance: called with each request, and quick: it may do so, too.
        versions: the names that have versions; None: none has.
        on_added: called with the name of each model that is added.
        folders: looks at folders of adapters; None: no model has one.
    """

    def __init__(
        self, *, budget: int | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.budget = budget
        self.versions: Versions | None = None
        self.folders: AdapterFolders | None = None
        self.on_added: Callable[[str], None] = lambda name: None
        self.look: Callable[[], None] = lambda: None
        self.glance: Callable[[], None] = lambda: None
        self._slots: list[Slot] = []
        self._clock = clock
        self._by_name: dict[str, Slot] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._draining: str | None = None
        self._draining_later: asyncio.Task[None] | None = None
        self._resharing = False
        self._only_ended = asyncio.Event()
        self._reason = ""  # why it ended

    # -- names -------------------------------------------------------------------------------

    def add(self, hosted: Hosted, loader: Loader) -> Slot:
        """Serve a model from now on; it is loaded when a request needs it.

        An alias may be a pattern such as ``claude-*``: it means every name that it matches and that
        is neither a name nor matched by a longer pattern.

        Raises:
            TidemillError: CONFIG, one of its names is taken.
        """
        slot = Slot(hosted, loader)
        self._check_names(hosted)
        self._slots.append(slot)
        self._by_name.update(dict.fromkeys(slot.names, slot))
        self._watch(hosted)
        self.on_added(slot.name)
        return slot

    def _watch(self, hosted: Hosted) -> None:
        """Look at a model's folder of adapters from now on, if it has one."""
        if hosted.adapter_folder is not None and self.folders is None:
            from tidemill.server.host.adapter_folders import AdapterFolders

            self.folders = AdapterFolders(lambda: list(self._slots), self.has)

    def _check_names(self, hosted: Hosted, own: Slot | None = None) -> None:
        if "*" in hosted.name:
            raise config_error("name", f"{hosted.name!r} is a pattern; only further names may be")
        for name in (hosted.name, *hosted.aliases):
            if self._by_name.get(name, own) is not own:
                raise config_error(
                    "name", f"{name!r} is a name of {self._by_name[name].name!r}, too; rename one"
                )
            if self.versions is not None and self.versions.claims(name):
                raise config_error("name", f"{name!r} is a name with versions, too; rename one")

    def add_loaded(self, hosted: Hosted, loader: Loader, loaded: Loaded) -> Slot:
        """Serve a model that is loaded already."""
        slot = self.add(hosted, loader)
        self._open(slot, loaded)
        return slot

    def drop(self, slot: Slot) -> None:
        """Serve a model no longer; it is unloaded when its requests have ended."""
        for known in slot.names:
            del self._by_name[known]
        if self.versions is not None:
            self.versions.removed(slot.name)
        slot.removed = True
        slot.fail(unknown(slot.name, self.names))
        if slot.state is State.UNLOADED:
            self._slots.remove(slot)
        else:
            slot.leaving = True
            self._wake()

    async def remove(self, name: str) -> None:
        """As `drop`; returns when it is unloaded."""
        slot = self.find(name)
        self.drop(slot)
        while slot in self._slots:
            await asyncio.sleep(_POLL_SECONDS)

    def update(self, slot: Slot, hosted: Hosted) -> None:
        """Change a model's aliases and stay; requests in flight are not touched.

        Raises:
            TidemillError: CONFIG, one of its names is taken.
        """
        self._check_names(hosted, slot)
        for known in slot.names:
            del self._by_name[known]
        if hosted.adapter_folder is None:  # once watched, always watched
            hosted = replace(hosted, adapter_folder=slot.hosted.adapter_folder)
        slot.hosted, slot.keep_alive = hosted, None
        slot.adapters.follow(hosted.adapters)
        self._watch(hosted)
        self._by_name.update(dict.fromkeys(slot.names, slot))
        self._wake()

    def replace(self, slot: Slot, loader: Loader) -> None:
        """Load a model by another loader from now on. One that is loaded answers what it has begun;
        then it is unloaded, and what came meanwhile has waited for the new one."""
        slot.loader, slot.error = loader, None
        if slot.state is State.UNLOADED:
            slot.need = None
        else:
            slot.leaving = slot.replaced = True
            self._wake()

    def order(self, names: Iterable[str]) -> None:
        """Put these models first, in this order; the first answers requests that name none."""
        wanted = [self._by_name[name] for name in names]
        self._slots = [*wanted, *(slot for slot in self._slots if slot not in wanted)]

    def rebudget(self, budget: int | None) -> None:
        """Change the bytes for all models; what is too much now is evicted when others load."""
        self.budget = budget
        self._resharing = True
        self._wake()

    @property
    def slots(self) -> list[Slot]:
        """The models in order; the first answers requests that name none."""
        return [slot for slot in self._slots if not slot.removed]

    @property
    def default(self) -> Slot:
        """The model of requests that name none."""
        return self.slots[0]

    @property
    def models(self) -> list[ServedModel]:
        """What is loaded."""
        return [slot.loaded.served for slot in self._slots if slot.loaded is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of every model but patterns; those with versions first."""
        versioned = () if self.versions is None else self.versions.names
        found = (
            *versioned,
            *self._by_name,
            *(name for slot in self.slots for name in slot.adapters),
        )
        return tuple(dict.fromkeys(name for name in found if "*" not in name))

    def has(self, name: str) -> bool:
        """Whether a model, or a version of one, has that name."""
        return name in self._by_name

    def find(self, name: str | None) -> Slot:
        """The model of that name; the default one for an absent or empty name. Of a name with
        versions the one that requests get that no comparison sends elsewhere.

        Raises:
            Rejection: 404.
        """
        if not name:
            return self.default
        return self._slot(self._known(name))

    def _slot(self, name: str) -> Slot:
        traffic = None if self.versions is None else self.versions.find(name)
        if traffic is not None:
            name = f"{traffic.name}@{traffic.stable}"
        slot = self._by_name.get(name)
        if slot is None and (adapted := self.adapter(name)) is not None:
            slot = adapted[0]
        if slot is None:
            raise unknown(name, self.names)
        return slot

    def adapter(self, name: str | None) -> tuple[Slot, str] | None:
        """The model and its adapter that a name means, which is no model's: ``ADAPTER`` (of the
        first model that has one of that name) or ``MODEL:ADAPTER``."""
        if not name or name in self._by_name:
            return None
        for slot in self.slots:
            if name in slot.adapters:
                return slot, name
        base, _, own = name.rpartition(":")
        # An adapter has none of its own.
        if not base or self.adapter(base) is not None or not self._has_any(base):
            return None
        slot = self._slot(base)
        return (slot, own) if own in slot.adapters else None

    def _known(self, name: str) -> str:
        """The name in the spelling that is known here, after a look where there is none: as in the
        library ``name:latest`` is ``name``; of a name that a pattern matches, the longest pattern,
        which is a name of its model, or of its versions."""
        if self._has_any(name):
            return name
        self.look()
        base, at, version = name.partition("@")
        plain = base.removesuffix(_LATEST) + at + version
        if self._has_any(name):
            return name
        return plain if self._has_any(plain) else self._pattern_of(name) or name

    def _has_any(self, name: str) -> bool:
        named = self.versions is not None and self.versions.find(name) is not None
        return named or name in self._by_name or self.adapter(name) is not None

    def _pattern_of(self, name: str) -> str | None:
        """The longest pattern that matches a name."""
        versioned = () if self.versions is None else self.versions.names
        known = (*self._by_name, *versioned)
        patterns = [p for p in known if "*" in p and fnmatchcase(name, p)]
        return max(patterns, key=len, default=None)

    def called(self, name: str | None) -> str:
        """The name that answers to requests for `name` carry.

        Raises:
            Rejection: 404.
        """
        if not name:
            return self.default.name
        name = self._known(name)
        traffic = None if self.versions is None else self.versions.find(name)
        if traffic is None and self.adapter(name) is not None:
            return name
        return self._slot(name).name if traffic is None else traffic.name

    def route(self, name: str | None, caller: Caller = ANONYMOUS) -> Routed:
        """The model that answers one request.

        Args:
            name: see `find`.
            caller: who asks; keeps its version where the name's traffic says so.

        Raises:
            Rejection: 404.
        """
        self.glance()
        if name:
            name = self._known(name)
        if self.versions is not None:
            if not name:
                name = self.default.name
                base = name.rpartition("@")[0]
                name = base if base and self.versions.find(base) else name
            routed = self.versions.route(name, caller)
            if routed is not None:
                return routed
        if (found := self.adapter(name)) is not None:
            return Routed(found[0], called=name, adapter=found[1])
        return Routed(self._slot(name) if name else self.default)

    # -- requests ----------------------------------------------------------------------------

    def lease(
        self,
        name: str | Routed | None,
        keep_alive: float | None = None,
        caller: Caller = ANONYMOUS,
        *,
        within: bool = False,
    ) -> AbstractAsyncContextManager[ServedModel]:
        """The model of that name, loaded, and not evicted until the lease ends.

        Args:
            name: see `route`; or what it returned.
            keep_alive: seconds that it stays loaded after its last request, from now on.
            caller: see `route`.
            within: a request that is being answered needs it, and no new one.

        Raises:
            Rejection: 404 for an unknown name, 503 for a model that can never fit, while the
                server shuts down, or where too many wait.
            TidemillError: why it cannot be loaded; see `refusals.unusable`.
        """
        if self._draining_later is not None and not within:
            raise TidemillError(ErrorKind.UNAVAILABLE, self._draining or "", retryable=True)
        routed = name if isinstance(name, Routed) else self.route(name, caller)
        lease = self._lease(routed.slot, keep_alive, partial(unusable, routed.slot.name))
        if self.versions is not None:
            lease = self.versions.lease(routed, lease)
        known = routed.slot.loaded is not None  # else a model may turn out to have some
        if routed.adapter is None and known and not routed.slot.adapters.always:
            return lease
        return adapted(routed, lease)

    @asynccontextmanager
    async def _lease(
        self,
        slot: Slot,
        keep_alive: float | None,
        as_told: Callable[[TidemillError], TidemillError] = lambda error: error,
    ) -> AsyncIterator[ServedModel]:
        if slot.open:
            slot.leases += 1
        else:
            try:
                await self._wait_for(slot)
            except TidemillError as error:
                raise as_told(error) from None
        if keep_alive is not None:
            slot.keep_alive = keep_alive
        try:
            assert slot.loaded is not None
            yield slot.loaded.served
        finally:
            slot.leases -= 1
            slot.last_used = self._clock()
            if self._task is not None or slot.expires_after != _NEVER:
                self._wake()

    async def _wait_for(self, slot: Slot) -> None:
        """Return with a lease of a model that is not open now."""
        if self._draining is not None:
            raise reject(503, self._draining, code="shutting_down")
        now = self._clock()
        if slot.error is not None and now < slot.failed + RETRY_AFTER_SECONDS:
            raise slot.error
        if sum(len(s.waiters) for s in self._slots) >= MAX_WAITING:
            raise reject(
                503,
                f"{MAX_WAITING} requests already wait for models that are being loaded; send this "
                "one again later",
                code="overloaded",
                headers={"Retry-After": "5"},
            )
        waiter = Waiter(now, asyncio.get_running_loop().create_future())
        slot.waiters.append(waiter)
        self._wake()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            granted = waiter.granted
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                slot.leases -= 1  # granted and cancelled in the same turn of the loop
            elif waiter in slot.waiters:
                slot.waiters.remove(waiter)
            self._wake()
            raise

    # -- operators ---------------------------------------------------------------------------

    async def load(self, slot: Slot, keep_alive: float | None = None) -> None:
        """Load a model as a request would; returns when it is open.

        Raises:
            Rejection, TidemillError: see `lease`.
        """
        slot.error = None
        async with self._lease(slot, keep_alive):
            pass

    async def unload(self, slot: Slot) -> None:
        """Unload a model once no request uses it; requests that come meanwhile load it again."""
        if slot.state is State.UNLOADED:
            return
        slot.leaving = True
        self._wake()
        while slot.leaving or slot.state is State.UNLOADING:
            await asyncio.sleep(_POLL_SECONDS)

    async def sleep(self, slot: Slot) -> bool:
        """Give a model's memory back and keep its process; False where it is used, or cannot."""
        if slot.state is not State.LOADED or slot.leases:
            return False
        if slot.drowsy is None:
            slot.drowsy = asyncio.get_running_loop().create_future()
        self._wake()
        return await asyncio.shield(slot.drowsy)

    def seconds_left(self, slot: Slot) -> float | None:
        """Until a loaded model is unloaded, if nothing uses it; None: it stays."""
        if slot.state is not State.LOADED or slot.hosted.pin or slot.expires_after == _NEVER:
            return None
        if slot.leases:
            return slot.expires_after
        return max(0.0, slot.expires - self._clock())

    def drain(self, reason: str) -> None:
        """Take no new requests; those that use a model go on, with the calls of pipelines."""
        self._draining = reason
        if self.versions is not None:
            self.versions.shadows.close()
        error = reject(503, reason, code="shutting_down")
        for slot in self._slots:
            slot.fail(error)
        loaded = [(slot, slot.loaded) for slot in self._slots if slot.loaded is not None]
        calling = [slot for slot, one in loaded if one.served.pipeline is not None and slot.leases]
        if calling:
            work = self._drain_after(calling, reason)
            self._draining_later = asyncio.create_task(work, name="tidemill-drain")
            return
        for _, one in loaded:
            one.drain(reason)

    async def _drain_after(self, calling: Sequence[Slot], reason: str) -> None:
        while any(slot.leases for slot in calling):
            await asyncio.sleep(_POLL_SECONDS)
        for slot in self._slots:
            if slot.loaded is not None:
                slot.loaded.drain(reason)

    @property
    def draining(self) -> str | None:
        """Why no new request is taken; None: they are."""
        return self._draining

    async def ended(self) -> str:
        """Return when the only model will not run any more, with the reason."""
        await self._only_ended.wait()
        return self._reason

    def _note_end(self, slot: Slot, loaded: Loaded) -> None:
        # Several are served without the one that ended.
        if len(self.slots) == 1 and (ended := loaded.ended) is not None:
            self._reason = ended
            self._only_ended.set()
        self._wake()

    async def idle(self) -> None:
        """Return when no request uses a model."""
        while any(slot.leases for slot in self._slots):
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Unload everything. Requests in flight end with a retryable error."""
        if self.versions is not None:
            await self.versions.close()
        if self.folders is not None:
            await self.folders.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._draining_later is not None:
            self._draining_later.cancel()
        loaded = [slot.loaded for slot in self._slots if slot.loaded is not None]
        await asyncio.gather(*(one.close() for one in loaded))

    # -- what is loaded ----------------------------------------------------------------------

    def _wake(self) -> None:
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._manage(), name="tidemill-models")

    async def _manage(self) -> None:
        """Load, evict and close, one action after another."""
        while True:
            self._changed.clear()
            try:
                until = await self._act()
            except Exception:
                log.exception("loading and evicting models failed; it goes on")
                until = self._clock() + RETRY_AFTER_SECONDS
            if until is None or until > self._clock():
                await self._wait_until(until)

    async def _wait_until(self, until: float | None) -> None:
        try:
            async with asyncio.timeout(None if until is None else max(0, until - self._clock())):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _act(self) -> float | None:
        """One action; returns when to look again at the latest (None: when something changes)."""
        now = self._clock()
        for slot in self._slots:
            ended = slot.loaded.ended if slot.loaded is not None else None
            if ended is not None:
                await self._unload(slot, TidemillError(ErrorKind.UNAVAILABLE, ended))
                return now
            if slot.leaving and not slot.leases:
                await self._unload(slot)
                return now
            if slot.drowsy is not None:
                drowsy, slot.drowsy = slot.drowsy, None
                try:
                    drowsy.set_result(await self._sleep(slot))
                finally:
                    drowsy.cancel()  # without effect on a result
                return now
            if slot.waiters and slot.need is None and slot.state is State.UNLOADED:
                await self._learn_need(slot)
        if self._resharing:
            self._resharing = False
            await self._learn_needs_of_held()
            await self._share()
        action = next_action([slot.fact() for slot in self._slots], self.budget, now)
        if not isinstance(action, Wait):
            log.debug("models: %s", action)
            await self._do(action)
            return now
        unused = [s for s in self._slots if s.state is State.LOADED and not s.leases]
        unused = [s for s in unused if not s.hosted.pin]
        first = min(unused, key=lambda slot: slot.expires, default=None)
        if first is not None and first.expires <= now:
            log.info("model %s was not used for %g s", first.name, first.expires_after)
            await self._unload(first)
            return now
        until = min(
            _NEVER if first is None else first.expires,
            _NEVER if action.until is None else action.until,
        )
        return None if until == _NEVER else until

    async def _do(self, action: Load | Evict | Close | Reopen | Refuse) -> None:
        slot = next(slot for slot in self._slots if slot.key == action.name)
        if isinstance(action, Load):
            await self._load(slot)
        elif isinstance(action, Evict):
            await self._unload(slot)
        elif isinstance(action, Close):
            slot.closed = True
        elif isinstance(action, Reopen):
            self._reopen(slot)
        elif isinstance(action, Refuse):
            slot.fail(never_fits(action))

    async def _learn_need(self, slot: Slot) -> None:
        try:
            slot.need = await slot.loader.need()
        except TidemillError as error:
            self._failed(slot, error)

    async def _learn_needs_of_held(self) -> None:
        """Of models that were loaded while there was no budget."""
        for slot in self._slots:
            if slot.state is State.LOADED and slot.need is None and self.budget is not None:
                try:
                    slot.need = await slot.loader.need()
                except TidemillError as error:
                    log.warning("what %s needs is not known: %s", slot.name, error.message)

    def _failed(self, slot: Slot, error: TidemillError) -> None:
        slot.error, slot.failed = error, self._clock()
        log.warning("model %s cannot be loaded: %s", slot.name, error.message)
        slot.fail(error)

    async def _load(self, slot: Slot) -> None:
        began = self._clock()
        asleep, slot.state = slot.loaded, State.LOADING
        try:
            kv_bytes = await self._make_room(slot)
            if asleep is not None:
                await asleep.wake()
                loaded = asleep
            else:
                loaded = await self._start(slot, kv_bytes)
        except BaseException as error:
            slot.state, slot.loaded = State.UNLOADED, None
            if asleep is not None:
                await asleep.close()
            if not isinstance(error, TidemillError):
                raise
            self._failed(slot, error)
            return
        slot.load_seconds = self._clock() - began
        log.info("model %s is loaded after %.1f s", slot.name, slot.load_seconds)
        self._open(slot, loaded)

    async def _start(self, slot: Slot, kv_bytes: int | None) -> Loaded:
        tries = 1
        while True:
            try:
                return await slot.loader.load(
                    kv_bytes, lambda told: setattr(slot, "progress", told)
                )
            except TidemillError as error:
                if error.kind is not ErrorKind.UNAVAILABLE or tries == LOAD_TRIES:
                    raise
                tries += 1
                log.warning("model %s is loaded again: %s", slot.name, error.message)

    async def _sleep(self, slot: Slot) -> bool:
        if slot.loaded is None or slot.state is not State.LOADED or slot.leases:
            return False
        slot.state = State.UNLOADING
        asleep = False
        try:
            asleep = await slot.loaded.sleep()
        except TidemillError as error:
            log.warning("model %s does not sleep: %s", slot.name, error.message)
        finally:
            slot.state = State.ASLEEP if asleep else State.LOADED
            if not asleep:
                slot.grant()
        return asleep

    def _open(self, slot: Slot, loaded: Loaded) -> None:
        slot.state, slot.loaded, slot.error = State.LOADED, loaded, None
        slot.adapters.apply(loaded.served.made.adapters)
        loaded.on_end(partial(self._note_end, slot, loaded))
        slot.last_used = self._clock()
        self._reopen(slot)
        if slot.leaving and not slot.replaced:
            slot.grant()  # what waited for this load is answered before it leaves

    def _reopen(self, slot: Slot) -> None:
        slot.closed, slot.opened = False, self._clock()
        if not slot.leaving:
            slot.grant()

    async def _unload(self, slot: Slot, error: TidemillError | None = None) -> None:
        loaded, slot.loaded, slot.state = slot.loaded, None, State.UNLOADING
        slot.leaving = slot.closed = False
        try:
            if loaded is not None:
                await loaded.close()
        finally:
            slot.state, slot.progress = State.UNLOADED, None
            if slot.replaced:
                slot.replaced, slot.need = False, None
            if slot.removed:
                self._slots.remove(slot)
        if error is not None:
            self._failed(slot, error)
        else:
            log.info("model %s is unloaded", slot.name)
        await self._share()

    async def fits_without_eviction(self, slot: Slot) -> bool:
        """Whether a model could be loaded without evicting another."""
        if self.budget is None:
            return True
        if slot.need is None:
            await self._learn_need(slot)
        if slot.need is None:
            return False
        held = (s.fact() for s in self._slots if s is not slot)
        used = sum(fact.need.least for fact in held if fact.held and fact.need is not None)
        return used + slot.need.least <= self.budget

    async def _make_room(self, slot: Slot) -> int | None:
        """Shrink the KV caches of the others; returns the size of this model's."""
        if self.budget is None or slot.need is None:
            return None
        return (await self._share(slot))[slot.key]

    async def _share(self, loading: Slot | None = None) -> dict[str, int]:
        """Give every loaded model its share of the memory for KV caches."""
        if self.budget is None:
            return {}
        held = [s for s in self._slots if s.state is State.LOADED or s is loading]
        found = switching.shares([(s.key, s.need) for s in held if s.need is not None], self.budget)
        for slot in held:
            if slot is not loading and slot.loaded is not None and slot.key in found:
                try:
                    await slot.loaded.resize(found[slot.key])
                except TidemillError as error:
                    log.warning("the KV cache of %s is not resized: %s", slot.name, error.message)
        return found
