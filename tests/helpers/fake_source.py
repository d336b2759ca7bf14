"""A source of models that a test writes: no library, no deployment file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from helpers.fake_loader import FakeLoader
from helpers.live_server import make_model
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.server.context import ServerContext
from tidemill.server.host.manager import ModelManager
from tidemill.server.host.pipelines.options import PipelineOptions
from tidemill.server.host.pipelines.pipeline import Pipeline
from tidemill.server.host.source import Creation, ModelChanges, ModelOptions, OnPull, Reload
from tidemill.server.host.switching import Need


def option(name: str, **changes: Any) -> ModelOptions:
    """A model that nothing is located for."""

    def locate() -> Any:
        raise AssertionError("a scripted model is not located")

    return ModelOptions(name, locate, **changes)


class FakeUpload:
    """A file that is kept in memory; any digest is right."""

    def __init__(self, source: FakeSource, digest: str) -> None:
        self._source, self._digest, self._content = source, digest, b""

    def write(self, data: bytes) -> None:
        self._content += data

    def finish(self) -> None:
        self._source.files[self._digest] = self._content

    def close(self) -> None:
        self._source.closed += 1


@dataclass
class FakeSource:
    """A `Source`.

    Attributes:
        looked: what the next `look` finds.
        reloads: what the next `reload` makes; an error is raised.
        library: names that were pulled.
        pulling: called in the thread of a pull.
        created: what was asked to be created.
        files: digest -> content of files that were received.
        closed: how many uploads have ended.
    """

    looked: ModelChanges | None = None
    reloads: Reload | TidemillError | None = None
    library: list[str] = field(default_factory=list)
    pulling: Callable[[OnPull, Event], None] = lambda told, cancel: None
    created: list[Creation] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    closed: int = 0
    reloadable: bool = True

    @property
    def watched(self) -> bool:
        return self.looked is not None

    def look(self) -> ModelChanges | None:
        found, self.looked = self.looked, None
        return found

    def adopt(self, name: str) -> ModelChanges:
        return ModelChanges(added=(option(name),))

    def reload(self) -> Reload:
        assert self.reloads is not None
        if isinstance(self.reloads, TidemillError):
            raise self.reloads
        return self.reloads

    def budget(self, held: int) -> int:
        return 1000

    def pull(
        self, source: str, name: str | None, sha256: str | None, told: OnPull, cancel: Event
    ) -> str:
        told("resolving", 0, 0, None)
        self.pulling(told, cancel)
        self.library.append(name or source)
        return name or source

    def create(self, asked: Creation, told: OnPull, cancel: Event) -> str:
        self.created.append(asked)
        self.pulling(told, cancel)
        self.library.append(asked.name)
        return asked.name

    def has_file(self, digest: str) -> bool:
        if not digest.startswith("sha256:"):
            raise bad_request("digest", "digest must be sha256: and 64 digits")
        return digest in self.files

    def receive_file(self, digest: str, size: int | None) -> FakeUpload:
        return FakeUpload(self, digest)

    def copy(self, source: str, target: str) -> str:
        self._check(source)
        self.library.append(target)
        return target

    def remove(self, name: str) -> int:
        self._check(name)
        self.library.remove(name)
        self.looked = ModelChanges(removed=(name,))
        return 7

    def _check(self, name: str) -> None:
        if name not in self.library:
            raise TidemillError(ErrorKind.NOT_FOUND, f"the library has no model {name!r}")


def managed(context: ServerContext, source: FakeSource) -> dict[str, FakeLoader]:
    """Give a server a manager whose models are scripted engines; their loaders by name."""
    loaders: dict[str, FakeLoader] = {}

    def loader(chosen: ModelOptions) -> FakeLoader:
        engine = ScriptedEngine(info=fake_info(model=chosen.name))
        made = FakeLoader(make_model(context, engine), needs=Need(10, 2, 20))
        loaders[chosen.name] = made
        return made

    def pipeline(options: PipelineOptions) -> Pipeline:
        return Pipeline(options, context.host, context.shared, context.metrics)

    context.manager = ModelManager(context.host, source, loader, pipeline)
    context.host.look = context.manager.look
    context.host.glance = context.manager.glance
    return loaders
