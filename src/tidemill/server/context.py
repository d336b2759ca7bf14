"""The state that all handlers of one server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import ASGIApp

from tidemill.contract.prices import Prices
from tidemill.contract.wire import EngineStats
from tidemill.metrics.admission import AdmissionMetrics
from tidemill.metrics.registry import ServerMetrics
from tidemill.server.access.keys import KeyStore, NoKeys
from tidemill.server.access.limits import Limits
from tidemill.server.admission.bodies import Bodies
from tidemill.server.admission.shared import SharedBounds
from tidemill.server.host.host import ModelHost
from tidemill.server.storage import Storage

if TYPE_CHECKING:
    from tidemill.contract.quotas import Defaults
    from tidemill.server.access.auth import Principal
    from tidemill.server.host.manager import ModelManager
    from tidemill.server.host.request_names import RequestNames
    from tidemill.server.host.versions import Versions
    from tidemill.server.quotas.gate import Gate, PendingQuota
    from tidemill.server.quotas.quotas import RequestQuota
    from tidemill.server.quotas.service import QuotaService
    from tidemill.server.recording import Recording
    from tidemill.store.cipher import Cipher
    from tidemill.store.location import Location
    from tidemill.store.recorder import Recorder
    from tidemill.telemetry.otel import Exporter
    from tidemill.telemetry.recent import Recent

T = TypeVar("T")


@dataclass(slots=True)
class ServerContext:
    """The models that are served, and the bounds of the API.

    Attributes:
        limits: bounds.
        metrics: request-side metrics.
        build: version of the software.
        host: the models.
        quotas: limits on what clients use; None: nothing is limited.
        state_folder: where the state of rollouts is kept over restarts; None: nowhere.
        page: browsers get the page for people at `/`.
        resumable: streams of events can be resumed although their requests do not ask for it.
        manager: changes which models there are; None: they stay.
        storage: the database; None: `--database none`.
        keys: who may call.
        home: ``TIDEMILL_HOME``, where the server's secret is; None: there is no database.
        cipher: of what clients say and are answered, where the database keeps it; None: it does
            not.
        app: the application, for requests that the server makes itself.
        bodies: bound on the memory of request bodies.
        shared: bounds on what requests to all models hold.
        recording: makes a record of each request; None: nobody reads them.
        recorder: where the records go.
        recent: what explains the latest requests; None: it is not kept.
        exporter: of OpenTelemetry; None: nothing is exported.
        on_step: told of each step of a model's engine; filled before a model is served.
        on_loaded: told of the device of each model that is served.
        explanations_kept: those of earlier ones are in the database.
        followed: what clients call their requests, once somebody follows the caches.
    """

    limits: Limits = field(default_factory=Limits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    build: str = ""
    host: ModelHost = field(default_factory=ModelHost)
    state_folder: Path | None = None
    page: bool = True
    resumable: bool = False
    bodies: Bodies = field(init=False)
    shared: SharedBounds = field(init=False)
    manager: ModelManager | None = None
    recording: Recording | None = None
    recorder: Recorder | None = None
    recent: Recent | None = None
    exporter: Exporter | None = None
    on_step: list[Callable[[str, EngineStats], None]] = field(default_factory=list)
    on_loaded: list[Callable[[str], None]] = field(default_factory=list)
    explanations_kept: bool = False
    followed: RequestNames | None = None
    storage: Storage | None = None
    keys: KeyStore = field(default_factory=NoKeys)
    home: Path | None = None
    quotas: Gate | None = None
    cipher: Cipher | None = None
    app: ASGIApp | None = None
    _kept: dict[object, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.max_bodies_bytes)
        self.shared = SharedBounds(
            self.limits.max_active_choices,
            self.limits.max_answers_bytes,
            AdmissionMetrics(self.metrics.registry),
        )

    def keep_recent(self, size: int, prices: Prices) -> None:
        """Keep what explains the latest requests, so many of them; called after it is decided
        whether they are recorded, and before the application is built."""
        from tidemill.metrics.ended import EndedMetrics
        from tidemill.server.recording import Recording
        from tidemill.telemetry.measures import Measures
        from tidemill.telemetry.recent import Recent

        self.recent = Recent(size)
        self.recent.on_end.append(Measures(EndedMetrics(self.metrics.registry), prices.currency))
        if self.recording is None:
            self.recording = Recording(lambda record: None, prices)
        self.recording.recent = self.recent

    def open_database(self, location: Location) -> Storage:
        """Have a database; it is opened later, by whoever needs it."""
        from tidemill.metrics.database import DatabaseMetrics

        self.storage = Storage(location, DatabaseMetrics(self.metrics.registry))
        return self.storage

    def limit(self, quotas: Defaults, prices: Prices, outage: float) -> QuotaService:
        """Limit what clients use, by the deployment, key files and the database.

        Args:
            quotas: limits of each level.
            prices: of models.
            outage: seconds for which limits are spent while the database does not answer.

        Returns:
            What is to be started.
        """
        from tidemill.server.quotas.service import QuotaService

        service = QuotaService(quotas, prices, self.metrics.registry, self.storage, outage)
        self.quotas = service.gate
        if self.keys.closed:
            service.limit()
        return service

    async def close(self) -> None:
        """Write what is recorded, and close the database; the models are not closed."""
        if self.exporter is not None:
            await asyncio.to_thread(self.exporter.close)
        if self.recorder is not None:
            await self.recorder.close()
        if self.storage is not None:
            await self.storage.close()

    def on_stats(
        self, model: str, told: Callable[[EngineStats], None]
    ) -> Callable[[EngineStats], None]:
        """What an engine's statistics are given to: `told`, and whatever else wants to know of
        its steps."""
        listeners = tuple(self.on_step)
        if not listeners:
            return told

        def all_of_them(stats: EngineStats) -> None:
            told(stats)
            for listener in listeners:
                listener(model, stats)

        return all_of_them

    def begin_quota(self, principal: Principal) -> RequestQuota | PendingQuota | None:
        """What a request of the principal is charged to; None where nothing limits it."""
        return None if self.quotas is None else self.quotas.begin(principal)

    def kept(self, make: Callable[[ServerContext], T]) -> T:
        """What `make` makes, made once: state of a dialect that lives as long as the server."""
        if make not in self._kept:
            self._kept[make] = make(self)
        found: T = self._kept[make]
        return found

    def versions(self) -> Versions:
        """The names of the host's models that have versions; made when first needed."""
        if self.host.versions is None:
            from tidemill.metrics.rollouts import RolloutMetrics
            from tidemill.server.host.versions import Versions

            metrics = RolloutMetrics(self.metrics.registry)
            self.host.versions = Versions(self.host, metrics, self.state_folder)
        return self.host.versions

    @property
    def version(self) -> str:
        """Version of the software, for clients."""
        return self.build or "0"
