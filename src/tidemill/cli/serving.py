"""From a deployment to what the server runs: models located, text sides opened, limits raised."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.deployment.deployment import Deployment, ModelSettings
    from tidemill.library.locate import Located
    from tidemill.server.access.limits import Limits
    from tidemill.server.app import Extension
    from tidemill.server.context import ServerContext
    from tidemill.server.host.engine_loader import Opening, TextSide
    from tidemill.server.host.pipelines.options import PipelineOptions
    from tidemill.server.host.source import ModelOptions, NameOptions, Source
    from tidemill.server.run import ServeOptions, WatchSteps

Say = Callable[[str], None]

MEMORY_SHARE = 0.85
"""Of the memory that is free at the start: what models get where nobody set a budget."""


def named_models(
    models: Sequence[str], file: Path | None, *, alone: bool, say: Say
) -> tuple[str, ...]:
    """The sources of the models that the command line asks for.

    Args:
        models: as typed. A path may be typed without ``./`` where nothing has its name.
        file: the deployment file, whose models are served where none is typed.
        alone: without names, only the bundled model is meant, not the library.
        say: called with a line about each model of the library that is left out.
    """
    from tidemill.library.home import default_home, has_models
    from tidemill.loading.locate import DEFAULT_MODEL, bundled_models

    if not models and file is None:
        return (DEFAULT_MODEL, *(() if alone else _usable(say)))
    known = set(bundled_models())
    library: list[str] = []
    if has_models(default_home()):
        from tidemill.library.catalog import Library

        library = list(Library.open().names())
    found = []
    for model in models:
        path = Path(model).expanduser()
        if model not in known and model not in library and path.exists():
            model = str(path.absolute())
        found.append(model)
    return tuple(found)


def _usable(say: Say) -> list[str]:
    """Names of the library's models that can be opened."""
    from tidemill.library.home import default_home, has_models

    if not has_models(default_home()):
        return []
    from tidemill.library.catalog import Library

    found, wrong = Library.open().usable()
    for problem in wrong:
        say(f"not served: {problem}")
    return [entry.name for entry in found]


def serve_options(
    deployment: Deployment,
    say: Say,
    source: Source | None = None,
    adapters: Sequence[str] = (),
    adapter_folder: str | None = None,
) -> ServeOptions:
    """What `server.run.serve` takes.

    The model that is loaded first is located and its settings are checked here, so that a wrong
    flag or name fails before anything is started.

    Args:
        deployment: checked.
        say: called with one line about each automatic choice.
        source: where models are described while the server runs; None: they stay.
        adapters: of the command line, as `declared_adapters` reads them.
        adapter_folder: of the command line: of the first model.

    Raises:
        TidemillError: kind CONFIG, NOT_FOUND or MODEL_FILE.
    """
    from tidemill.deployment.checks import watts_of
    from tidemill.library.home import default_home
    from tidemill.server.run import ServeOptions
    from tidemill.store.location import location_of
    from tidemill.telemetry.otel_options import otel_options

    server = deployment.server
    database = location_of(server.database, default_home())
    stored = None
    if database is not None:
        from tidemill.server.access.stored import StoredKeys

        stored = StoredKeys(
            database,
            default_home(),
            required=bool(deployment.security.require_keys or deployment.security.oidc_issuer),
            outage=server.database_outage,
        )
    first, *others = model_options(deployment, say)
    models = [dataclasses.replace(first, locate=partial(_same, first.locate())), *others]
    if adapters:
        models = _with_adapters(models, adapters)
    if adapter_folder is not None:
        watched = _existing_folder(adapter_folder)
        models[0] = dataclasses.replace(models[0], adapter_folder=watched)
    return ServeOptions(
        models,
        pipelines=pipeline_options(deployment),
        memory=memory_budget(deployment, say),
        names=name_options(deployment),
        # Two servers on one machine have different ports; a restarted one has the same.
        state_folder=default_home() / "rollouts" / str(server.port) if server.port else None,
        log_level=server.log_level,
        limits=with_files(deployment.limits, say),
        security=deployment.security.open(server.host, say, stored),
        log_format=server.log_format,
        admission=deployment.admission,
        stall_timeout=server.stall_timeout,
        drain_timeout=server.drain_timeout,
        grpc=None if server.grpc_port is None else (server.host, server.grpc_port),
        source=source,
        home=default_home(),
        page=server.page == "on",
        resumable_streams=server.resumable_streams,
        keep_content=server.content == "database",
        database=database,
        prices=deployment.prices,
        quotas=deployment.quotas,
        database_outage=server.database_outage,
        recent_requests=server.recent_requests,
        keep_explanations=server.keep_explanations,
        watch_steps=_step_watches(default_home()),
        otel=otel_options(
            server.otel, server.otel_protocol, server.otel_sample, server.otel_steps, os.environ
        ),
        energy=server.energy != "off",
        watts=watts_of(server.energy),
        carbon_intensity=server.carbon_intensity,
        extend=_extension(deployment),
        metrics_aliases="" if server.metrics_aliases == "none" else server.metrics_aliases,
    )


def _extension(deployment: Deployment) -> Callable[[ServerContext], Extension] | None:
    """What `[upstream]` says; imported only where there is one."""
    if not deployment.upstream:
        return None
    from tidemill.gateway.upstream import Upstream

    shared = deployment.server.database not in (None, "none")
    return partial(Upstream, deployment.upstream, shared=shared)


def _existing_folder(text: str) -> str:
    from tidemill.base.errors import config_error

    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise config_error("adapter_folder", f"--adapter-folder: {folder} is no folder")
    return str(folder)


def _step_watches(home: Path) -> WatchSteps | None:
    """What compares steps with the costs that are kept; imported only where some are."""
    from tidemill.library.home import COSTS

    folder = home / COSTS
    if not folder.is_dir():
        return None
    from tidemill.planning.watch import StepWatches

    return StepWatches(folder)


def _with_adapters(models: Sequence[ModelOptions], texts: Sequence[str]) -> list[ModelOptions]:
    """The models with the adapters of the command line. Raises CONFIG."""
    from tidemill.base.errors import config_error
    from tidemill.library.definition.recipe import adapter_path
    from tidemill.server.host.adapters import declared_adapters

    found = list(models)
    for base, name, path in declared_adapters(texts):
        owners = [i for i, m in enumerate(found) if not base or base in (m.name, *m.aliases)]
        if not owners:
            raise config_error("adapter", f"--adapter: no model here is called {base[:80]!r}")
        if any(name in (model.name, *model.aliases) for model in found):
            raise config_error("adapter", f"--adapter {name}: a model is called so, too")
        model = found[owners[0]]
        new = {**model.adapters, name: adapter_path(path, Path.cwd(), f"--adapter {name}")}
        found[owners[0]] = dataclasses.replace(model, adapters=new)
    return found


def check_grpc(host: str, port: int) -> None:
    """Raise CONFIG without the extra grpc, RESOURCE where the port is in use."""
    from importlib.util import find_spec

    from tidemill.base.errors import config_error
    from tidemill.server.transport.listen import bind

    if find_spec("grpc") is None or find_spec("google.protobuf") is None:
        raise config_error(
            "grpc-port", "--grpc-port needs the packages of an extra: pip install 'tidemill[grpc]'"
        )
    bind(host, port, "grpc-port").close()


def pipeline_options(deployment: Deployment) -> list[PipelineOptions]:
    """The pipelines in their order."""
    if not deployment.pipelines:
        return []
    from tidemill.server.host.pipelines.options import PipelineOptions

    return [
        PipelineOptions(one.name, one.file, one.timeout, one.memory, one.options)
        for one in deployment.pipelines
    ]


def memory_budget(deployment: Deployment, say: Say) -> int | None:
    """Bytes for all models together; None: one model takes what it finds."""
    budget = deployment.server.memory
    if budget is None and len(deployment.models) > 1:
        from tidemill.base.free_memory import free_memory

        budget = int(free_memory() * MEMORY_SHARE)
        say(f"memory for all models: {budget / 2**30:.1f} GiB (--memory), of what is free now")
    return budget


def model_options(deployment: Deployment, say: Say) -> Iterator[ModelOptions]:
    """The models in their order, but for what is better loaded at the start, as the first one is:
    pinned models, and of the versions of a name the one that answers to the name alone."""
    from tidemill.server.host.source import ModelOptions

    answering, first = _answering(deployment), dict[str, int]()
    for place, model in enumerate(deployment.models):
        first.setdefault(_unversioned(model.name), place)

    def order(model: ModelSettings) -> tuple[bool, int, bool]:
        name = _unversioned(model.name)
        return not model.pin, first[name], answering.get(name) != model.name

    for model in sorted(deployment.models, key=order):
        yield ModelOptions(
            model.name,
            partial(_open, model, say),
            model.aliases,
            pin=model.pin,
            keep_alive=model.keep_alive,
            adapters=_adapters_of(model),
            adapter_folder=model.adapter_folder,
        )


def _adapters_of(model: ModelSettings) -> Mapping[str, str]:
    """Names and absolute paths of a model's adapters. Raises CONFIG."""
    if not model.adapters:
        return {}
    from tidemill.library.definition.recipe import adapter_path  # most models have none

    return {
        name: adapter_path(path, Path.cwd(), f"{model.name}, adapter {name}")
        for name, path in model.adapters.items()
    }


def _answering(deployment: Deployment) -> dict[str, str]:
    """Name with versions -> the model that answers to it before any rollout."""
    declared = {}
    if deployment.names:
        from tidemill.server.host.rollout.traffic import versions_of

        declared = {n.name: f"{n.name}@{versions_of(n.traffic)[0]}" for n in deployment.names}

    def number(model: str) -> int:
        _, at, version = model.rpartition("@")
        if not at:
            return 2**63  # a model of exactly that name is what the name means
        return int(version) if version.isdecimal() else -1

    highest = {
        _unversioned(model.name): model.name
        for model in sorted(deployment.models, key=lambda model: number(model.name))
    }
    return {**highest, **declared}


def _unversioned(name: str) -> str:
    return name.rpartition("@")[0] or name


def _same(opening: Opening) -> Opening:
    return opening


def _open(model: ModelSettings, say: Say) -> Opening:
    """Locate a model and check its settings."""
    from tidemill.base.files import opened_files
    from tidemill.library.locate import locate
    from tidemill.loading.hub_name import with_options
    from tidemill.loading.kind import check_model
    from tidemill.server.host.engine_loader import Opening
    from tidemill.server.host.made import Made

    found = locate(with_options(model.source, model.file, model.revision), say)
    check_model(found.path)
    definition = found.definition
    made = Made(found.base, found.licence, definition.adapters, definition.max_model_len)
    own = {
        "quantize": definition.quantize,
        "max_model_len": definition.max_model_len,
        "system": definition.system,
    }
    filled = model.filled(own, {})
    config = filled.engine_config(found.path)
    load_text = partial(load_text_side, found, filled, say)
    if (filled.chat_template, filled.tool_format, filled.reasoning_format) == (
        None,
        "auto",
        "auto",
    ):
        return Opening(config, load_text, made)
    # These settings may be invalid: check them before the weights are loaded.
    with opened_files() as opened:
        checked = dataclasses.replace(load_text(), files=tuple(opened.values()))
    return Opening(config, lambda: checked, made)


def load_text_side(model: Located, settings: ModelSettings, say: Say) -> TextSide:
    """Load a model's text side and say what was found."""
    from tidemill.cli import options
    from tidemill.contract.sampling import NEUTRAL
    from tidemill.generation.preset import Preset
    from tidemill.grammar.schema import prepared
    from tidemill.server.host.engine_loader import TextSide
    from tidemill.text.answering import ChatSide

    opened = options.open_text(model.path, settings.chat_template, model.definition)
    for note in opened.tokenizer.notes:
        say(note)
    own = {k: v for k, v in settings.sampling.items() if k in NEUTRAL}
    defaults = {**opened.defaults, **own}
    if defaults:
        chosen = ", ".join(f"{k} {v:g}" for k, v in defaults.items())
        say(f"sampling where a request says nothing (the model's own): {chosen}")
    if not opened.template.exists:
        say("the model has no chat template: only /v1/completions answers (or --chat-template)")
    chat = ChatSide.of(
        opened.tokenizer,
        opened.template,
        prepared,
        tool_format=settings.tool_format,
        reasoning_format=settings.reasoning_format,
    )
    if opened.template.exists:
        say(chat.described())
    preset = Preset(
        settings.system, opened.preset.messages, {**opened.preset.sampling, **settings.sampling}
    )
    return TextSide(opened.tokenizer, opened.template, chat, defaults, preset)


def name_options(deployment: Deployment) -> tuple[NameOptions, ...]:
    """The names that have versions."""
    from tidemill.server.host.source import NameOptions

    return tuple(
        NameOptions(one.name, one.versions, one.traffic, one.aliases) for one in deployment.names
    )


def with_files(limits: Limits, say: Say) -> Limits:
    """The API's limits; the system's limit on open files bounds the number of connections."""
    from tidemill.server.transport.listen import raise_file_limit

    possible = raise_file_limit(limits.max_connections)
    if possible < limits.max_connections:
        say(
            f"at most {possible} connections instead of {limits.max_connections}: the system's "
            "limit on open files (`ulimit -n`) allows no more"
        )
    return dataclasses.replace(limits, max_connections=possible)


def say_line(line: str) -> None:
    """Print a startup line at any log level; with JSON logs it is a log record."""
    import logging

    from tidemill.base.log import get_logger, log_format

    if log_format() == "json":
        log = get_logger("tidemill.cli.serve")
        log.handle(log.makeRecord(log.name, logging.INFO, "", 0, line, (), None))
        return
    # A single write: two threads print while loading.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
