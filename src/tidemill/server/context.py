"""The state that all handlers of one server share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.base.clock import wall
from tidemill.base.vector_data import VectorData
from tidemill.grammar.schema import prepared
from tidemill.metrics.admission import AdmissionMetrics
from tidemill.metrics.registry import ServerMetrics
from tidemill.server.access.limits import Limits
from tidemill.server.admission.bodies import Bodies
from tidemill.server.admission.control import Admission
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.errors import reject
from tidemill.text.answering import ChatSide

if TYPE_CHECKING:
    from tidemill.contract.wire import EngineInfo
    from tidemill.engine.client import EngineClient
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer

# Sampling parameters that a model's generation_config may preset.
PRESETS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(slots=True)
class ServerContext:
    """The served model and the bounds of the API.

    Attributes:
        client: the engine.
        tokenizer, template: the model's tokenizer and chat template.
        defaults: sampling defaults of the model's generation_config (keys of `PRESETS`), applied
            where a request leaves a field out.
        limits: bounds.
        metrics: request-side metrics.
        aliases: further names of the served model.
        build: version of the software; part of the fingerprint.
        config_digest: identity of the engine's configuration; part of the fingerprint.
        created: when the model was made available, for /v1/models.
        chat_side: what tokenizer and template support in a chat; None detects it.
        chat: the given or detected `chat_side`.
        vectors: how the model's vectors and scores are made.
        admission_options: bounds of the queue.
        admission: admission control.
        bodies: bound on the memory of request bodies.
    """

    client: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    aliases: tuple[str, ...] = ()
    build: str = ""
    config_digest: str = ""
    created: int = field(default_factory=lambda: int(wall()))
    admission_options: AdmissionOptions = field(default_factory=AdmissionOptions)
    admission: Admission = field(init=False)
    bodies: Bodies = field(init=False)
    chat_side: ChatSide | None = None
    chat: ChatSide = field(init=False)

    def __post_init__(self) -> None:
        self.chat = self.chat_side or ChatSide.of(self.tokenizer, self.template, prepared)
        self.bodies = Bodies(self.limits.max_bodies_bytes)
        metrics = AdmissionMetrics(self.metrics.registry)
        self.admission = Admission(
            self.admission_options,
            lambda: self.client.info,
            metrics,
            max_choices=self.limits.max_active_choices,
            max_answers=self.limits.max_answers_bytes,
        )

    @property
    def info(self) -> EngineInfo:
        """The settings that the engine resolved at start."""
        return self.client.info

    @property
    def vectors(self) -> VectorData:
        """How the model's vectors and scores are made."""
        return self.client.info.vectors

    @property
    def fingerprint(self) -> str:
        """Identifies everything besides the request that determines the answer's tokens."""
        info = self.client.info
        parts = (
            f"{self.build}\0{self.config_digest}\0{info.model}\0{info.backend}\0{info.isa}\0"
            f"{info.dtype}\0{info.quantization}\0{info.kv_dtype}"
        )
        return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]

    @property
    def max_input(self) -> int:
        """Maximum tokens of an input without generation."""
        return self.info.max_model_len

    def check_generates(self) -> None:
        """Raise a 400 unless the model generates text."""
        if not self.info.generates:
            does = "/v1/rerank and /v1/score" if self.vectors.head == "score" else "/v1/embeddings"
            raise reject(
                400,
                f"the model {self.info.model!r} generates no text: it has no output layer; "
                f"{does} are for it",
                param="model",
                code="unsupported",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the served model; answers carry the first."""
        return (self.info.model, *self.aliases)

    def check_model(self, name: str | None) -> None:
        """Raise a 404 unless `name` is absent, empty or one of the served model."""
        if name and name not in self.names:
            served = " or ".join(map(repr, self.names))
            raise reject(
                404,
                f"the model {name[:256]!r} does not exist; this server serves {served}",
                param="model",
                code="model_not_found",
            )
