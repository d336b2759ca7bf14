"""Changes which models a host serves while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.base.process_memory import process_bytes
from tidemill.server.errors import Rejection
from tidemill.server.host.engine_loader import TextSide
from tidemill.server.host.host import ModelHost
from tidemill.server.host.slot import Hosted, Loader, Slot, State
from tidemill.server.host.source import (
    Creation,
    ModelChanges,
    ModelOptions,
    NameOptions,
    OnPull,
    Source,
)

if TYPE_CHECKING:
    from threading import Event

    from tidemill.server.host.pipelines.options import PipelineOptions
    from tidemill.server.host.pipelines.pipeline import Pipeline

log = get_logger(__name__)

LOOK_SECONDS = 1.0
"""A change of the library is noticed by requests for models that are known after so long."""


class TextLoader(Loader, Protocol):
    """A loader that opens the text side alone, too."""

    async def text(self) -> TextSide:
        """Tokenizer, template and defaults as configured now."""


@dataclass(slots=True)
class ModelManager:
    """See the module docstring.

    Attributes:
        host: the models.
        source: where they are described.
        loader: makes a model's loader.
        pipeline: makes a pipeline, which is its own loader.
        follow_names: serves these names with versions, and no others of a deployment.
        follow_upstream: has the targets of these tables of `[upstream]`, and no others.
        on_reload: called after each reload, when its models are in force.
        drain_timeout: as a reload said last; None: none did.
    """

    host: ModelHost
    source: Source
    loader: Callable[[ModelOptions], TextLoader]
    pipeline: Callable[[PipelineOptions], Pipeline]
    follow_names: Callable[[Sequence[NameOptions]], None] = lambda names: None
    follow_upstream: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None
    on_reload: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    drain_timeout: float | None = None
    _looked: float = field(default_factory=monotonic)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _loading: set[asyncio.Task[None]] = field(default_factory=set)

    def look(self) -> None:
        """Serve what was added to the library, and what was removed no longer."""
        if self._turn.locked():
            return  # a reload has read all of it; what it has not seen is found the next time
        self._looked = monotonic()
        changes = self.source.look()
        if changes is not None:
            self._apply(changes, {})

    def glance(self) -> None:
        """As `look`, for a name that is known: where there is a library, at most once a second."""
        now = monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            if self.source.watched:
                self.look()

    async def reload(self) -> dict[str, Any]:
        """Read the deployment again and apply what has changed, all or nothing; the differences.

        Raises:
            TidemillError: why nothing was changed.
        """
        async with self._turn:
            found = await asyncio.to_thread(self.source.reload)
            loaders = {option.name: self.loader(option) for option in found.models.updated}
            texts = {
                name: await loaders[name].text()
                for name in found.models.texts
                if self.host.find(name).state is not State.UNLOADED
            }
            self._apply(found.models, texts)
            self.follow_names(found.names)
            self.host.order(found.order)
            if found.memory != self.host.budget:
                self.host.rebudget(found.memory)
            self.drain_timeout = found.drain_timeout
            if self.follow_upstream is not None and found.upstream:
                await self.follow_upstream(found.upstream)
            found.commit()
            for hook in self.on_reload:
                await hook()
        self._load_pinned()
        return found.document

    async def pull(self, source: str, name: str | None, sha256: str | None, told: OnPull) -> str:
        """Pull a model into the library and serve it; its name. Cancelled, the pull stops, and what
        it has downloaded stays for the next one."""
        return await self._add(partial(self.source.pull, source, name, sha256, told))

    async def create(self, asked: Creation, told: OnPull) -> str:
        """Make a model of the library and serve it; its name. Cancelled, it stops."""
        return await self._add(partial(self.source.create, asked, told))

    async def _add(self, work: Callable[[Event], str]) -> str:
        """Serve the model that `work` adds to the library, in a thread."""
        from threading import Event

        cancel = Event()
        working = asyncio.ensure_future(asyncio.to_thread(work, cancel))
        try:
            name = await asyncio.shield(working)
        except asyncio.CancelledError:
            cancel.set()
            await asyncio.gather(working, return_exceptions=True)
            raise
        self.look()
        self._apply(await asyncio.to_thread(self.source.adopt, name), {})
        return name

    async def copy(self, source: str, target: str) -> str:
        """Give a model of the library a second name and serve it; the name."""
        name = await asyncio.to_thread(self.source.copy, source, target)
        self.look()
        self._apply(await asyncio.to_thread(self.source.adopt, name), {})
        return name

    async def remove(self, name: str) -> int:
        """Remove a model of the library and serve it no longer; bytes that were freed. Requests
        that it answers go on."""
        freed = await asyncio.to_thread(self.source.remove, name)
        self.look()
        return freed

    @staticmethod
    async def held(host: ModelHost) -> dict[str, int]:
        """Bytes of memory that each model's process takes now."""
        pids = {slot.name: slot.loaded.pid for slot in host.slots if slot.loaded is not None}
        found: dict[str, int] = {}
        for name, pid in pids.items():
            size = None if pid is None else await asyncio.to_thread(process_bytes, pid)
            if size is not None:
                found[name] = size
        return found

    async def close(self) -> None:
        """End what is loaded in the background."""
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)

    # -- how ---------------------------------------------------------------------------------

    def _apply(self, changes: ModelChanges, texts: dict[str, TextSide]) -> None:
        """Apply changes in one turn of the event loop, so that no request sees half of them."""
        host = self.host
        for name in (*changes.removed, *changes.pipelines_removed):
            host.drop(host.find(name))
        kept = (*changes.updated, *changes.replaced)
        for option in kept:  # an alias may go from one to another
            host.update(host.find(option.name), Hosted(option.name))
        for option in kept:
            host.update(host.find(option.name), option.hosted)
        for option in changes.replaced:
            host.replace(host.find(option.name), self.loader(option))
        for option in changes.updated:
            self._update(host.find(option.name), option, changes.texts, texts.get(option.name))
        if changes.added and host.budget is None and host.slots:
            host.rebudget(self.source.budget(sum(self._held_now())))
        for option in changes.added:
            try:
                host.add(option.hosted, self.loader(option))
            except TidemillError as error:  # a name of the library that means something else here
                log.error("%s is not served: %s", option.name, error.message)
        for pipeline in changes.pipelines_restarted:
            host.replace(host.find(pipeline.name), self.pipeline(pipeline))
        for pipeline in changes.pipelines_added:
            self.pipeline(pipeline).add()
        gone = {*changes.removed, *changes.pipelines_removed}
        new = [option.name for option in changes.added]
        new += [pipeline.name for pipeline in changes.pipelines_added]
        for name in (*gone, *new):
            log.info("%s is served %s", name, "no longer" if name in gone else "now")

    def _held_now(self) -> Iterable[int]:
        for slot in self.host.slots:
            if slot.loaded is not None and slot.loaded.pid is not None:
                yield process_bytes(slot.loaded.pid) or 0

    def _update(
        self, slot: Slot, option: ModelOptions, changed: frozenset[str], text: TextSide | None
    ) -> None:
        if option.name in changed and slot.loaded is None and slot.state is not State.UNLOADED:
            self.host.replace(slot, self.loader(option))  # it loads what it was
            return
        if option.name in changed:
            slot.loader = self.loader(option)
        if slot.loaded is None:
            return
        served = replace(slot.loaded.served, aliases=option.aliases)
        if text is not None:
            served = replace(
                served,
                tokenizer=text.tokenizer,
                template=text.template,
                chat=text.chat,
                defaults=text.defaults,
                preset=text.preset,
            )
        slot.loaded.served = served

    def _load_pinned(self) -> None:
        for slot in self.host.slots:
            if slot.hosted.pin and slot.state is State.UNLOADED:
                task = asyncio.create_task(self._load(slot), name=f"tidemill-load-{slot.name}")
                self._loading.add(task)
                task.add_done_callback(self._loading.discard)

    async def _load(self, slot: Slot) -> None:
        try:
            await self.host.load(slot)
        except (TidemillError, Rejection) as error:
            log.warning("the pinned model %s is not loaded: %s", slot.name, error)


def no_manager() -> TidemillError:
    """Of a server whose models cannot be changed."""
    return TidemillError(
        ErrorKind.UNSUPPORTED, "the models of this server cannot be changed while it runs"
    )
