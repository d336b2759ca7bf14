"""A deployment from the command line: a file, the flags that were typed, and further checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.base.errors import TidemillError

if TYPE_CHECKING:
    import socket

    from tidemill.contract.config import EngineConfig
    from tidemill.contract.needs import MemoryNeeds
    from tidemill.deployment.deployment import Deployment, ModelSettings, Section
    from tidemill.deployment.reading import Sourced
    from tidemill.deployment.resolve import DeploymentInputs
    from tidemill.library.catalog import Library
    from tidemill.library.manifest import Definition

Found = Iterator[tuple[str, str, str]]
Needs = Callable[["EngineConfig"], "MemoryNeeds"]


def deployment_inputs(
    ctx: click.Context,
    file: Path | str | None,
    models: Sequence[str] = (),
    *,
    open_models: bool = False,
    listener: socket.socket | None = None,
) -> DeploymentInputs:
    """What makes the deployment of a command that has the flags of `serve`.

    Args:
        ctx: of the command; tells flags that were typed from defaults.
        file: the deployment file; None: flags and defaults alone.
        models: sources of further models.
        listener: given by a service manager; its address counts before every other.
        open_models: check the headers of models on this machine, too, and the memory they need;
            imports numpy, which a server's own process must not.
    """
    from click.core import ParameterSource

    from tidemill.deployment.problems import Origin
    from tidemill.deployment.reading import Sourced
    from tidemill.deployment.resolve import DeploymentInputs

    given = given_flags(ctx)
    if listener is not None:
        host, port = listener.getsockname()[:2]
        origin = Origin("environment", "LISTEN_FDS")
        given |= {"host": Sourced(host, origin), "port": Sourced(port, origin)}
    limits = given.pop("limit", None)
    named_by = Origin("flag", "command line")
    if ctx.get_parameter_source("model") is ParameterSource.ENVIRONMENT:
        named_by = Origin("environment", "TIDEMILL_MODEL")
    return DeploymentInputs(
        file=file,
        given=given,
        models=tuple(Sourced(model, named_by) for model in models),
        limits=() if limits is None else tuple(limits.value),
        checks=(*CHECKS, check_files) if open_models else CHECKS,
    )


def given_flags(ctx: click.Context) -> dict[str, Sourced]:
    """Parameter -> value and origin of each flag that was typed or is in the environment."""
    from click.core import ParameterSource

    from tidemill.deployment.problems import Origin
    from tidemill.deployment.reading import Sourced

    found: dict[str, Sourced] = {}
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        if not isinstance(parameter, click.Option):
            continue
        if source is ParameterSource.COMMANDLINE:
            found[name] = Sourced(ctx.params[name], Origin("flag", parameter.opts[0]))
        elif source is ParameterSource.ENVIRONMENT:
            found[name] = Sourced(
                ctx.params[name], Origin("environment", str(parameter.envvar or ""))
            )
    return found


def own_settings(model: ModelSettings) -> Mapping[str, tuple[Any, str]]:
    """What a model's files and its entry of the library say, by setting, and which of them says it.

    Nothing is downloaded: of a model that is not on this machine nothing is known.
    """
    from tidemill.loading.generation import generation_defaults
    from tidemill.loading.jsonfile import read_optional_object

    path, definition = _on_this_machine(model.source)
    found: dict[str, tuple[Any, str]] = {}
    try:
        if path is not None and path.is_dir():
            defaults, _ = generation_defaults(read_optional_object(path / "generation_config.json"))
            for key, value in dataclasses.asdict(defaults).items():
                if value is not None:
                    found[f"sampling.{key}"] = value, "the model's generation_config.json"
    except (TidemillError, OSError):
        pass  # loading the model says what is wrong
    said_by = f"the library's model {model.source}"
    for key in ("system", "max_model_len", "chat_template", "quantize"):
        value = getattr(definition, key)
        if value is not None:
            found[key] = value, said_by
    found |= {f"sampling.{k}": (v, said_by) for k, v in definition.sampling.items()}
    return found


def _on_this_machine(source: str) -> tuple[Path | None, Definition]:
    from tidemill.library.manifest import EMPTY
    from tidemill.library.names import ModelName
    from tidemill.loading.locate import bundled_models

    if Path(source).is_absolute():
        return Path(source), EMPTY
    bundled = bundled_models().get(source)
    if bundled is None and ModelName.parse(source) is not None:
        try:
            library = _library()
            if library.find(source) is not None:
                entry = library.resolve(source)
                return entry.path, entry.definition
        except TidemillError:
            pass
    return bundled, EMPTY


def _library() -> Library:
    from tidemill.library.catalog import Library

    return Library.open()


# -- checks that need other rooms than the deployment's ------------------------------------------


def check_sources(deployment: Deployment) -> Found:
    """Names of models must be ones that `serve` can find."""
    from tidemill.deployment.show import without_credentials
    from tidemill.library.names import ModelName
    from tidemill.loading.hub_name import parse
    from tidemill.loading.locate import bundled_models

    folder = Path(deployment.file).absolute().parent if deployment.file else Path.cwd()
    for section in _models(deployment):
        source = section.values["source"].value
        key = "source" if section.values["source"].origin.source != "default" else "name"
        if Path(source).is_absolute() or source in bundled_models():
            continue
        try:
            if ModelName.parse(source) is not None and _library().find(source) is not None:
                _library().resolve(source)  # raises if its files are gone
                continue
            if (folder / source).exists():
                yield section.label, key, f"is a name; for the path of that spelling: ./{source}"
            elif parse(source) is None:
                yield section.label, key, _unknown(without_credentials(source))
        except TidemillError as error:
            yield section.label, key, without_credentials(error.message)
        except OSError as error:
            yield section.label, key, f"cannot be looked up: {error.strerror or error}"


def check_adapters(deployment: Deployment) -> Found:
    """Adapters must be files and folders, or in the library."""
    from tidemill.library.locate import locate_adapter

    for section in _models(deployment):
        for text in section.values["adapters"].value.values():
            try:
                locate_adapter(text)
            except TidemillError as error:
                yield section.label, "adapters", error.message


def _unknown(source: str) -> str:
    if ":" in source and not source.startswith("hf:"):
        return f"is not on this machine; `tidemill pull {source} --as NAME` gets it"
    return (
        f"{source!r} is no model of the library (`tidemill list`) and no name on the hub "
        "(owner/name)"
    )


def check_text_sides(deployment: Deployment) -> Found:
    """Formats must be known; files of chat templates must be templates."""
    from tidemill.cli.options import template_from
    from tidemill.text.parsers.formats import FORMATS, THINKING

    for section in _models(deployment):
        values = section.values
        for key, known in (("tool_format", FORMATS), ("reasoning_format", ("none", *THINKING))):
            if values[key].value not in ("auto", *known):
                yield section.label, key, f"is auto or one of {', '.join(known)}"
        template = values["chat_template"].value
        if template is not None and Path(template).is_absolute():
            try:
                template_from(template, {})
            except TidemillError as error:
                yield section.label, "chat_template", error.message


def check_upstream(deployment: Deployment) -> Found:
    """`[upstream]` must be what a gateway takes."""
    if not deployment.upstream:
        return
    from tidemill.gateway.config import checked

    try:
        checked(deployment.upstream, "")
    except TidemillError as error:
        key = (error.param or "").partition(".")[0].partition("[")[0]
        yield "upstream", key if key in deployment.upstream else "", error.message


def check_files(deployment: Deployment) -> Found:
    """Models on this machine must be ones that load, and fit in the memory that models may use."""
    from tidemill.worker.needs import memory_needs

    every = {model.name for model in deployment.models}
    yield from check_models(deployment, memory_needs, every, every)


def check_models(
    deployment: Deployment, needs: Needs, loads: Collection[str], fits: Collection[str]
) -> Found:
    """As `check_files`, of some models.

    Args:
        deployment: all of them.
        needs: what an engine of a configuration needs.
        loads: names of models that must load.
        fits: names of those whose memory counts; of others nothing is read.
    """
    from tidemill.deployment.conflicts import memory_check

    labels = {section.name: section.label for section in _models(deployment)}
    least: dict[str, int] = {}
    for model in deployment.models:
        if model.name not in loads and model.name not in fits:
            continue
        path, definition = _on_this_machine(model.source)
        if path is None:
            continue
        own = {"quantize": definition.quantize, "max_model_len": definition.max_model_len}
        problem = ""
        try:
            least[model.name] = _least_bytes(model.filled(own, {}), path, needs)
        except TidemillError as error:
            problem = error.message
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
        if problem and model.name in loads:
            yield labels[model.name], "source", problem
    yield from memory_check(lambda model: least.get(model.name))(deployment)


def _least_bytes(model: ModelSettings, path: Path, ask: Needs) -> int:
    """What a model needs at least: a context that nobody set shrinks to the memory there is."""
    needs = ask(model.engine_config(path))
    cache = model.engine["kv_memory"]
    if cache is None and model.engine["max_model_len"] is None:
        cache = needs.block_tokens * needs.token_bytes + 2 * needs.state
    return needs.total(cache, sequences=1)


def _models(deployment: Deployment) -> Iterator[Section]:
    for section in deployment.sections:
        if section.table == "models" and "source" in section.values:
            yield section


CHECKS = (check_sources, check_adapters, check_text_sides, check_upstream)
