"""One model that is served: its engine and its text side."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.base.errors import unsupported
from tidemill.contract.request import adapters_key
from tidemill.generation.preset import NO_PRESET, Preset
from tidemill.metrics.registry import ModelMetrics
from tidemill.server.admission.control import Admission
from tidemill.server.host.made import NOT_SAID, Made

if TYPE_CHECKING:
    from tidemill.contract.request import AdapterUse
    from tidemill.contract.wire import EngineInfo
    from tidemill.engine.client import EngineClient
    from tidemill.server.host.pipelines.pipeline import Pipeline
    from tidemill.server.host.watching import Observer, Watch
    from tidemill.text.answering import ChatSide
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer


@dataclass(slots=True)
class ServedModel:
    """A model that answers; a `generation.request.Model`.

    Attributes:
        client: the engine.
        tokenizer, template: the model's tokenizer and chat template.
        chat: what both support in a chat.
        defaults: sampling defaults of the model's generation_config (keys of `sampling.NEUTRAL`),
            applied where a request leaves a field out.
        admission: admission control.
        metrics: its own.
        preset: what the model brings to every request.
        aliases: further names.
        build: version of the software; part of the fingerprint.
        config_digest: identity of the engine's configuration; part of the fingerprint.
        pipeline: answers instead of an engine, whose place `client` then only takes; else None.
        called: of a version, the name that one request asked for; None: its own.
        made: how it was made.
        adapters: what the name that one request asked for means beside the model.
        watch: measures one request that is answered, for the comparison of versions.
        explain: what happens to its requests is noted, so that it can be told.
    """

    client: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    chat: ChatSide
    admission: Admission
    metrics: ModelMetrics
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    preset: Preset = NO_PRESET
    aliases: tuple[str, ...] = ()
    build: str = ""
    config_digest: str = ""
    pipeline: Pipeline | None = None
    called: str | None = None
    watch: Watch | None = None
    explain: bool = False
    adapters: tuple[AdapterUse, ...] = ()
    made: Made = NOT_SAID

    @property
    def info(self) -> EngineInfo:
        """The settings that the engine resolved at start."""
        return self.client.info

    @property
    def name(self) -> str:
        """The name that answers carry."""
        return self.called or self.client.info.model

    @property
    def names(self) -> tuple[str, ...]:
        """Every name; answers carry the first."""
        return (self.name, *self.aliases)

    def observe(self) -> Observer:
        """A request begins; what is returned is told of its tokens and its end."""
        return self.metrics.start() if self.watch is None else self.watch.begin(self.metrics)

    @property
    def fingerprint(self) -> str:
        """Identifies everything besides the request that determines the answer's tokens."""
        info = self.client.info
        parts = (
            f"{self.build}\0{self.config_digest}\0{info.model}\0{info.backend}\0{info.isa}\0"
            f"{info.dtype}\0{info.quantization}\0{info.kv_dtype}"
        )
        if self.preset != NO_PRESET:
            parts += f"\0{self.preset!r}"
        if self.adapters:
            parts += f"\0{adapters_key(self.adapters)}"
        return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]


def check_is_model(model: ServedModel) -> None:
    """Raise UNSUPPORTED for a pipeline: it has no tokens and no vectors."""
    if model.pipeline is not None:
        raise unsupported(
            "model",
            f"{model.name!r} is a pipeline: it answers conversations and prompts alone; send this "
            "request to a model",
        )
