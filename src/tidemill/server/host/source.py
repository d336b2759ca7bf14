"""Where the models of a server are described, outside of it: its deployment and the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.server.host.slot import Hosted

if TYPE_CHECKING:
    from tidemill.server.host.engine_loader import Opening
    from tidemill.server.host.pipelines.options import PipelineOptions
    from tidemill.server.host.rollout.traffic import Traffic


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """One model to serve.

    Attributes:
        name: the name that answers carry.
        locate: finds its files and says how it is opened; called in a thread when it is loaded.
        aliases: further names.
        pin: it is loaded before the server is ready, and never evicted.
        keep_alive: seconds without use after which it is unloaded; infinite: until its memory is
            needed.
        adapters: name -> path of its adapters.
        adapter_folder: see `Hosted`.
    """

    name: str
    locate: Callable[[], Opening]
    aliases: tuple[str, ...] = ()
    pin: bool = False
    keep_alive: float = math.inf
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_folder: str | None = None

    @property
    def hosted(self) -> Hosted:
        """The same without its files."""
        return Hosted(
            self.name,
            self.aliases,
            pin=self.pin,
            keep_alive=self.keep_alive,
            adapters=self.adapters,
            adapter_folder=self.adapter_folder,
        )


@dataclass(frozen=True, slots=True)
class NameOptions:
    """A name with versions; each is a model ``name@version``.

    Attributes:
        name: what clients use.
        versions: at least one.
        traffic: which of them answers.
        aliases: further names.
    """

    name: str
    versions: tuple[str, ...]
    traffic: Traffic
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """What becomes of the models of a running server.

    Attributes:
        added: served from now on.
        removed: names of those that are served no longer.
        replaced: their engines start anew, once what they answer has ended.
        updated: names, stay or text side change; their engines go on.
        texts: names of updated models whose text side changes.
        pipelines_added, pipelines_removed, pipelines_restarted: the same of pipelines.
    """

    added: tuple[ModelOptions, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[ModelOptions, ...] = ()
    updated: tuple[ModelOptions, ...] = ()
    texts: frozenset[str] = frozenset()
    pipelines_added: tuple[PipelineOptions, ...] = ()
    pipelines_removed: tuple[str, ...] = ()
    pipelines_restarted: tuple[PipelineOptions, ...] = ()


@dataclass(frozen=True, slots=True)
class Reload:
    """A deployment that was read again; nothing of it is in force yet.

    Attributes:
        models: what becomes of them.
        order: names of all models as they stand in it; the first answers requests that name none.
        memory: bytes for all models together; None: without bound.
        drain_timeout: seconds for requests in flight at the end.
        document: the differences, for administrators.
        commit: called when they are in force.
        names: every name with versions.
        upstream: the tables of `[upstream]`, checked; empty: there is none.
    """

    models: ModelChanges
    order: tuple[str, ...]
    memory: int | None
    drain_timeout: float
    document: dict[str, Any]
    commit: Callable[[], None]
    names: tuple[NameOptions, ...] = ()
    upstream: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A model to be made: of another one, or of files that were received.

    Attributes:
        name: what it is called.
        base: a name, or a source as of `pull`; None: `files`.
        files: names in the model -> digests (``sha256:...``).
        system, template: its system prompt and its chat template (Jinja); None: the base's.
        messages: turns before every conversation, as `role` and `content`.
        parameters: values by the names of a Modelfile's.
        licence: None: the base's.
        quantize: the type that its weights are written in; None: they stay.
        adapter: of a LoRA that is part of it: names -> digests of files that were received.
    """

    name: str
    base: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None
    template: str | None = None
    messages: Sequence[Mapping[str, str]] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    quantize: str | None = None
    adapter: Mapping[str, str] = field(default_factory=dict)


class Upload(Protocol):
    """A file that a client sends. Everything blocks: call it in a thread, one call at a time."""

    def write(self, data: bytes) -> None:
        """The next bytes."""

    def finish(self) -> None:
        """Keep it.

        Raises:
            TidemillError: BAD_REQUEST: it has another digest.
        """

    def close(self) -> None:
        """Remove what is not complete."""


OnPull = Callable[[str, int, int, str | None], None]
"""Hears of a pull, in its thread: the stage, bytes done and in all (0: not known), and a line that
people should read."""


class Source(Protocol):
    """What a server asks about models. Everything but `look` blocks: call it in a thread."""

    @property
    def reloadable(self) -> bool:
        """Whether there is a file that may say something else later."""

    @property
    def watched(self) -> bool:
        """Whether what is served may change by `look`, other than by something new."""

    def look(self) -> ModelChanges | None:
        """What has changed in the library since the last call; quick where nothing has."""

    def adopt(self, name: str) -> ModelChanges:
        """A model of the library is served from now on, whatever else is."""

    def reload(self) -> Reload:
        """Read the deployment again.

        Raises:
            TidemillError: CONFIG with every problem, or every change that needs another start.
        """

    def budget(self, held: int) -> int:
        """Bytes for all models where there is no budget yet and there is more than one model.

        Args:
            held: bytes that models have now.
        """

    def pull(
        self, source: str, name: str | None, sha256: str | None, told: OnPull, cancel: Event
    ) -> str:
        """Pull a model into the library; its name there. See `library.pull.pull`."""

    def create(self, asked: Creation, told: OnPull, cancel: Event) -> str:
        """Make a model of the library; its name there. See `library.create.create`."""

    def has_file(self, digest: str) -> bool:
        """Whether a file was received.

        Raises:
            TidemillError: BAD_REQUEST: it is no digest.
        """

    def receive_file(self, digest: str, size: int | None) -> Upload:
        """Receive a file; its bytes, where they are known.

        Raises:
            TidemillError: BAD_REQUEST: it is no digest; RESOURCE: there is no space for it.
        """

    def copy(self, source: str, target: str) -> str:
        """Give a model of the library a second name; the name in full."""

    def remove(self, name: str) -> int:
        """Remove a model of the library; bytes that were freed."""
