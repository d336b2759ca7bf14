"""What every handler of one server shares."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.base.clock import wall
from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.metrics.registry import ServerMetrics
from tidemill.server.errors import refuse
from tidemill.server.limits import Limits

if TYPE_CHECKING:
    from tidemill.contract.wire import EngineInfo
    from tidemill.engine.client import EngineClient
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer

# What a model's generation_config may preset, and under which name.
PRESETS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(slots=True)
class ServerContext:
    """The served model and the bounds of the API.

    Attributes:
        client: the engine.
        tokenizer, template: the model's text side.
        defaults: sampling defaults of the model's generation_config (keys of `PRESETS`), applied
            where a request leaves a field out.
        limits: bounds.
        metrics: request-side metrics.
        build: version of the software; part of the fingerprint.
        config_digest: identity of the engine's configuration; part of the fingerprint.
        created: when the model was made available, for /v1/models.
        active: choices being generated now.
    """

    client: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    build: str = ""
    config_digest: str = ""
    created: int = field(default_factory=lambda: int(wall()))
    active: int = 0

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved at its start."""
        return self.client.info

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same request may be answered with other tokens."""
        info = self.client.info
        parts = (
            f"{self.build}\0{self.config_digest}\0{info.model}\0{info.backend}\0{info.isa}\0"
            f"{info.dtype}\0{info.quantization}\0{info.kv_dtype}"
        )
        return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]

    def check_model(self, name: str | None) -> None:
        """Raise a 404 unless `name` is absent or the served model."""
        if name is not None and name != self.info.model:
            raise refuse(
                404,
                f"the model {name[:256]!r} does not exist; this server serves {self.info.model!r}",
                param="model",
                code="model_not_found",
            )

    def admit(self, choices: int) -> None:
        """Count choices that start; `release` takes them off again.

        Raises:
            TidemillError: kind OVERLOADED past the bound, BAD_REQUEST when it could never be met.
        """
        bound = self.limits.max_active_choices
        if choices > bound:
            raise bad_request(
                "n", f"n asks for {choices} choices over all prompts; at most {bound}"
            )
        if self.active + choices > bound:
            raise TidemillError(
                ErrorKind.OVERLOADED,
                f"{self.active} choices are being generated and at most {bound} may be; "
                "try again later",
                retryable=True,
            )
        self.active += choices

    def release(self, choices: int) -> None:
        """Choices that `admit` counted have ended."""
        self.active -= choices
