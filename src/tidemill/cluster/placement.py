"""What a controller needs of whatever places processes on machines: Ray, or a test's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

ENGINE, GATEWAY = "engine", "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A server process that is to run somewhere.

    Attributes:
        name: unique for ever.
        kind: `ENGINE` or `GATEWAY`.
        pool: what is scaled as one; of gateways empty.
        digest: of what it is started with.
        arguments: of `tidemill`; ``{host}``, ``{port}`` and ``{files}`` stand for what is known
            where it runs: its address, its port, the folder of its files.
        env: further variables.
        files: by their names, written before it starts.
        host: that it listens on; empty: its node's address.
        port: the first that is tried; 0: any free one.
        cpus, gpus, resources: reserved for it on one node.
        node: where it has to run; None: anywhere.
        drain_seconds: that it may take to end.
    """

    name: str
    kind: str
    pool: str
    digest: str
    arguments: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    host: str = ""
    port: int = 0
    cpus: float = 0.0
    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)
    node: str | None = None
    drain_seconds: float = 30.0


class Phase(StrEnum):
    """How far a process is."""

    PENDING = "pending"  # there is no node with room for it
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A process that exists, or is to.

    Attributes:
        name, kind, pool, digest: of its spec.
        phase: see there.
        url: where it answers; empty: not yet.
        node: where it runs; empty: nowhere yet.
        exits: how often it has ended unasked.
        reason: of its latest end, for people.
    """

    name: str
    kind: str
    pool: str
    digest: str
    phase: Phase
    url: str = ""
    node: str = ""
    exits: int = 0
    reason: str = ""


class Placement(Protocol):
    """See the module docstring. Nothing here waits for a process that does not answer."""

    async def processes(self) -> list[Placed]:
        """All that exist, those of an earlier controller included."""

    async def nodes(self) -> list[str]:
        """Ids of machines that are alive."""

    async def start(self, spec: ProcessSpec) -> None:
        """Reserve what it needs and have it run there, when there is room."""

    async def write(self, name: str, files: dict[str, str]) -> bool:
        """Replace files of a process and have it read them again; False: it could not be told."""

    async def stop(self, name: str, seconds: float) -> None:
        """End a process, which may take so long, and give back what was reserved."""
