"""The state that all handlers of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.metrics.admission import AdmissionMetrics
from tidemill.metrics.registry import ServerMetrics
from tidemill.server.access.limits import Limits
from tidemill.server.admission.bodies import Bodies
from tidemill.server.admission.shared import SharedBounds
from tidemill.server.host.host import ModelHost


@dataclass(slots=True)
class ServerContext:
    """The models that are served, and the bounds of the API.

    Attributes:
        limits: bounds.
        metrics: request-side metrics.
        build: version of the software.
        host: the models.
        bodies: bound on the memory of request bodies.
        shared: bounds on what requests to all models hold.
    """

    limits: Limits = field(default_factory=Limits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    build: str = ""
    host: ModelHost = field(default_factory=ModelHost)
    bodies: Bodies = field(init=False)
    shared: SharedBounds = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.max_bodies_bytes)
        self.shared = SharedBounds(
            self.limits.max_active_choices,
            self.limits.max_answers_bytes,
            AdmissionMetrics(self.metrics.registry),
        )

    @property
    def version(self) -> str:
        """Version of the software, for clients."""
        return self.build or "0"
