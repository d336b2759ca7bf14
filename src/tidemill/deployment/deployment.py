"""What one server serves: a deployment file, flags and defaults, resolved and checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.contract.config import EngineConfig
from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults
from tidemill.deployment.reading import Sourced, Values
from tidemill.deployment.security import SecuritySettings
from tidemill.deployment.settings import ENGINE_KEYS, Setting
from tidemill.server.access.limits import Limits
from tidemill.server.admission.options import AdmissionOptions

if TYPE_CHECKING:
    from tidemill.server.host.rollout.traffic import Traffic


class ServerSettings(msgspec.Struct, frozen=True):
    """Settings of the server as a whole; `deployment.settings.SERVER` says what they mean.

    Attributes:
        grpc_port: None: gRPC is not served.
        memory: bytes; None: from free memory.
        keep_alive: seconds; infinite for ever.
        stall_timeout, drain_timeout: seconds.
        database: as typed; it may hold a password. None: the default.
        database_outage: seconds; infinite for ever.
        content: ``memory`` or ``database``.
        recent_requests: 0: none are kept.
        keep_explanations: seconds; infinite for ever, 0: not in the database.
        otel: ``auto``, ``on``, ``off`` or a URL.
        energy: ``auto``, ``off`` or watts as typed.
        carbon_intensity: a number as typed, or a file.
        otel_protocol, otel_sample: None: as OpenTelemetry's variables say.
    """

    host: str
    port: int
    grpc_port: int | None
    memory: int | None
    keep_alive: float
    stall_timeout: float
    drain_timeout: float
    resumable_streams: bool
    log_level: str
    log_format: str
    database: str | None = None
    database_outage: float = 3600.0
    content: str = "memory"
    recent_requests: int = 512
    keep_explanations: float = 0.0
    metrics_aliases: str = "none"
    otel: str = "auto"
    otel_protocol: str | None = None
    otel_sample: float | None = None
    otel_steps: bool = False
    energy: str = "auto"
    carbon_intensity: str | None = None
    page: str = "on"


class ModelSettings(msgspec.Struct, frozen=True):
    """Settings of one model, or of one version of it (`deployment.settings.MODEL`).

    Attributes:
        name: unique; of a version ``name@version``.
        source: an absolute path, or a name to be located.
        keep_alive: seconds; infinite for ever.
        sampling: values where a request says nothing; absent ones are the model's own.
        engine: settings of its engine by the names of `EngineConfig`.
        adapters: name -> absolute path of its adapters, or their names in the library.
        adapter_folder: absolute path of a folder with more of them.
        of: of a version, the name that clients use; else None.
        template_digest: SHA-256 of a chat template's file, so that a changed one is noticed.
        stated: the settings that somebody set; sampling values as ``sampling.top_p``.
    """

    name: str
    source: str
    file: str | None
    revision: str | None
    aliases: tuple[str, ...]
    pin: bool
    keep_alive: float
    system: str | None
    chat_template: str | None
    tool_format: str
    reasoning_format: str
    sampling: Mapping[str, Any]
    engine: Mapping[str, Any]
    adapters: Mapping[str, str] = {}
    adapter_folder: str | None = None
    of: str | None = None
    template_digest: str | None = None
    stated: frozenset[str] = frozenset()

    def filled(self, own: Mapping[str, Any], sampling: Mapping[str, Any]) -> ModelSettings:
        """The same with a model's own values where nobody set anything.

        Args:
            own: values of any settings, such as ``system`` and ``quantize``; None is no value.
            sampling: sampling values of the model's definition.
        """
        new = {k: v for k, v in own.items() if v is not None and k not in self.stated}
        return msgspec.structs.replace(
            self,
            **{key: value for key, value in new.items() if key not in ENGINE_KEYS},
            sampling={**sampling, **self.sampling},
            engine={**self.engine, **{k: v for k, v in new.items() if k in ENGINE_KEYS}},
        )

    def engine_config(self, path: Path | str) -> EngineConfig:
        """The engine's configuration for the located model; validated."""
        return EngineConfig(model=str(path), served_name=self.name, **self.engine).validate()


class VersionedName(msgspec.Struct, frozen=True):
    """A name with versions, each of which is a model ``name@version``.

    Attributes:
        name: what clients use.
        aliases: further names.
        versions: in the file's order.
        traffic: which version answers.
    """

    name: str
    aliases: tuple[str, ...]
    versions: tuple[str, ...]
    traffic: Traffic


class PipelineSettings(msgspec.Struct, frozen=True):
    """Settings of one pipeline (`deployment.settings.PIPELINE`).

    Attributes:
        file: absolute path of its Python file.
        timeout: seconds; infinite for none.
        memory: bytes.
        options: what its code reads.
        file_digest: SHA-256 of the file, so that a changed one is noticed.
    """

    name: str
    file: str
    timeout: float
    memory: int
    options: Mapping[str, Any]
    file_digest: str


class Section(msgspec.Struct, frozen=True):
    """The settings of one table with their origins.

    Attributes:
        table: ``server``, ``admission``, ``security``, ``limits``, ``prices``, ``quotas``,
            ``upstream``, ``models`` or ``pipelines``.
        name: of the model or pipeline; else empty.
        label: how messages name it: ``server``, ``models[0]``, ``model NAME`` if not in the file.
        values: every setting of the table.
        settings: what the values mean.
    """

    table: str
    name: str
    label: str
    values: Mapping[str, Sourced]
    settings: Mapping[str, Setting]


class Deployment(msgspec.Struct, frozen=True):
    """A whole deployment; nothing in it needs a further check but what the machine decides.

    Attributes:
        file: the deployment file; None without one.
        server, admission, limits, security, prices, quotas: of the server as a whole.
        upstream: the tables of `[upstream]`, as a gateway's file has them; empty: there is none.
        models: in the file's order, versions included; empty: the whole library is served.
        names: the names that have versions.
        pipelines: in the file's order.
        sections: the same settings by table, with their origins.
    """

    file: str | None
    server: ServerSettings
    admission: AdmissionOptions
    limits: Limits
    security: SecuritySettings
    prices: Prices
    quotas: Defaults
    upstream: Mapping[str, Any]
    models: tuple[ModelSettings, ...]
    names: tuple[VersionedName, ...]
    pipelines: tuple[PipelineSettings, ...]
    sections: tuple[Section, ...]

    @property
    def served_names(self) -> tuple[str, ...]:
        """Every name that a request may use."""
        found = [name for one in self.names for name in (one.name, *one.aliases)]
        found += [name for model in self.models for name in (model.name, *model.aliases)]
        return (*found, *(pipeline.name for pipeline in self.pipelines))


def plain(values: Values) -> dict[str, Any]:
    """The values without their origins."""
    return {key: one.value for key, one in values.items()}


def make_model(
    values: Values, sampling: Values, *, of: str | None = None, template_digest: str | None = None
) -> ModelSettings:
    """A model's settings from the values of its tables."""
    known = plain(values)
    own = {*ModelSettings.__struct_fields__} & known.keys()
    return ModelSettings(
        **{key: known[key] for key in own},
        sampling={key: one for key, one in plain(sampling).items() if one is not None},
        engine={key: known[key] for key in ENGINE_KEYS},
        of=of,
        template_digest=template_digest,
        stated=frozenset(
            f"{prefix}{key}"
            for prefix, found in (("", values), ("sampling.", sampling))
            for key, one in found.items()
            if one.origin.source != "default"
        ),
    )
