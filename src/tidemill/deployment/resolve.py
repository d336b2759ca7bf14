"""A deployment from a file, flags and defaults: complete, or an error with every problem.

What counts first: a flag, then an environment variable, then the model's table, then
``[defaults]``, then the default. A flag about models applies to every model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.deployment import toml_text
from tidemill.deployment.deployment import (
    Deployment,
    ModelSettings,
    PipelineSettings,
    Section,
    ServerSettings,
    make_model,
    plain,
)
from tidemill.deployment.document import Document
from tidemill.deployment.positions import Positions
from tidemill.deployment.problems import DeploymentError, Origin, Problem
from tidemill.deployment.reading import (
    DEFAULT,
    Reader,
    Sourced,
    Values,
    explained,
    layered,
    read_given,
)
from tidemill.deployment.request_settings import limit_settings, sampling_settings
from tidemill.deployment.security import SecuritySettings
from tidemill.deployment.settings import (
    ADMISSION,
    MODEL,
    PIPELINE,
    SECURITY,
    SERVER,
    Setting,
    keyed,
)
from tidemill.deployment.toml_text import path_text
from tidemill.server.access.limits import Limits
from tidemill.server.admission.options import AdmissionOptions

IDENTITY = ("name", "source", "file", "revision", "aliases")
"""Settings of a model that ``[defaults]`` cannot hold."""

NOTE_DEFAULTS = "[defaults]"

Check = Callable[[Deployment], Iterable[tuple[str, str, str]]]
"""A further check of a deployment: section's label, key (or empty) and message of each problem."""


def resolve(
    document: Document | None = None,
    *,
    given: Mapping[str, Sourced] = {},
    models: Sequence[Sourced] = (),
    limits: Sequence[str] = (),
    checks: Sequence[Check] = (),
) -> Deployment:
    """Resolve a deployment.

    Args:
        document: the deployment file; None: flags and defaults alone.
        given: key -> value of a flag or an environment variable, as click converted it.
        models: sources of further models, from the command line.
        limits: ``NAME=VALUE``, from the command line.
        checks: run when everything else is right.

    Raises:
        DeploymentError: with every problem found.
    """
    work = _Work(document or Document("", Path.cwd(), {}, Positions()), given)
    deployment = work.deployment(models, limits, None if document is None else document.name)
    from tidemill.deployment.conflicts import conflicts

    found = conflicts(deployment, work.tables_with_problems())
    work.problems += located(deployment, found)
    if not work.problems:
        for check in checks:
            work.problems += located(deployment, check(deployment))
    if work.problems:
        raise DeploymentError(work.problems)
    return deployment


def located(deployment: Deployment, found: Iterable[tuple[str, str, str]]) -> Iterable[Problem]:
    """Problems of a check with the places of the settings they are about."""
    sections = {section.label: section for section in deployment.sections}
    for label, key, message in found:
        section = sections[label]
        values = section.values
        origin = values[key].origin if key else DEFAULT
        if origin.source == "default" and section.name:
            # The best place known is where the model or pipeline is named.
            named = (values[k].origin for k in ("name", "source", "file") if k in values)
            origin = next((one for one in named if one.source != "default"), DEFAULT)
        yield Problem(origin, f"{label}.{key}" if key else label, message)


class _Work:
    """One resolution; problems are collected in `problems`."""

    def __init__(self, document: Document, given: Mapping[str, Sourced]) -> None:
        self._given = given
        self._sampling = keyed(sampling_settings())
        self._limits = keyed(limit_settings())
        self._model = keyed(MODEL)
        elsewhere = {
            **dict.fromkeys(self._limits, "[limits]"),
            **dict.fromkeys(self._sampling, "[models.sampling]"),
            **dict.fromkeys(self._model, "[[models]]"),
            **dict.fromkeys((s.key for s in SECURITY), "[security]"),
            **dict.fromkeys((s.key for s in ADMISSION), "[admission]"),
            **dict.fromkeys((s.key for s in SERVER), "[server]"),
        }
        self._reader = Reader(document, elsewhere)
        self.problems = self._reader.problems
        self._sections: list[Section] = []

    def deployment(
        self, models: Sequence[Sourced], limits: Sequence[str], file: str | None
    ) -> Deployment:
        """The deployment; where there was a problem, it has the default."""
        self._reader.only(
            ("server", "admission", "security", "limits", "defaults", "models", "pipelines")
        )
        server = self._plain_table("server", SERVER)
        admission = self._plain_table("admission", ADMISSION)
        security = self._plain_table("security", SECURITY)
        bounds = self._limit_values(limits)
        found = self._models(models, server["keep_alive"])
        pipelines = self._pipelines()
        return Deployment(
            file=file,
            server=ServerSettings(**plain(server)),
            admission=AdmissionOptions.of(**plain(admission)),
            limits=Limits(**plain(bounds)),
            security=SecuritySettings(**plain(security)),
            models=found,
            pipelines=pipelines,
            sections=tuple(self._sections),
        )

    def tables_with_problems(self) -> set[str]:
        """Tables of the file in which something is wrong; ``flags`` for the command line."""
        found = set()
        for problem in self.problems:
            in_file = problem.origin.source == "file"
            found.add(re.split(r"[.\[]", problem.key)[0] if in_file else "flags")
        return found

    def _section(
        self, table: str, name: str, label: str, values: Values, known: Mapping[str, Setting]
    ) -> None:
        self._sections.append(Section(table, name, label, values, known))

    def _plain_table(self, table: str, settings: Sequence[Setting]) -> Values:
        known = keyed(settings)
        values = layered(
            settings,
            self._reader.table((table,), known),
            read_given(self._given, settings, self.problems),
        )
        self._section(table, "", table, values, known)
        return values

    def _limit_values(self, texts: Sequence[str]) -> Values:
        flags: Values = {}
        origin = Origin("flag", "--limit")
        for text in texts:
            name, _, value = text.partition("=")
            setting = self._limits.get(name.strip().replace("-", "_"))
            if setting is None:
                known = ", ".join(self._limits)
                self.problems.append(
                    Problem(origin, "", f"has no {name.strip()!r}; known are {known}")
                )
                continue
            try:
                number: Any = setting.kind.flag(value)
            except ValueError:
                number = value
            try:
                read = setting.kind.read(number, Path("/"))
            except ValueError as error:
                message = explained(setting, number, error)
                self.problems.append(Problem(origin, setting.key, message))
            else:
                flags[setting.key] = Sourced(read, origin)
        values = layered(
            tuple(self._limits.values()), self._reader.table(("limits",), self._limits), flags
        )
        self._section("limits", "", "limits", values, self._limits)
        return values

    # -- models ----------------------------------------------------------------------------------

    def _models(self, more: Sequence[Sourced], keep_alive: Sourced) -> tuple[ModelSettings, ...]:
        common = {key: s for key, s in self._model.items() if key not in IDENTITY}
        defaults = self._reader.table(("defaults",), common, ("sampling",), NOTE_DEFAULTS)
        sampling = self._reader.table(
            ("defaults", "sampling"), self._sampling, note="[defaults.sampling]"
        )
        flags = read_given(self._given, MODEL, self.problems)
        paths = self._reader.tables(("models",))
        self._check_one_model(flags, len(paths) + len(more))
        base = [{"keep_alive": keep_alive}, defaults]
        found: list[ModelSettings] = []
        for path in paths:
            found += self._model_of(path, base, sampling, flags)
        for source in more:
            values = self._model_values({"source": source}, base, flags)
            found += self._add_model(values, layered(self._sampling.values(), sampling))
        return tuple(found)

    def _check_one_model(self, flags: Values, count: int) -> None:
        if count <= 1:
            return
        for key, one in flags.items():
            if self._model[key].one_model:
                message = f"belongs to one model, and there are {count}; set {key} in its table"
                self.problems.append(Problem(one.origin, "", message))

    def _model_of(
        self, path: toml_text.Path, base: Sequence[Values], sampling: Values, flags: Values
    ) -> list[ModelSettings]:
        own = self._reader.table(path, self._model, ("sampling",))
        own_sampling = self._reader.table((*path, "sampling"), self._sampling)
        if all(self._reader.get((*path, key)) is None for key in ("name", "source")):
            self._reader.add(path, "has neither name nor source; source says which model it is")
        if not {"name", "source"} & own.keys():
            return []
        values = self._model_values(own, base, flags)
        return self._add_model(
            values, layered(self._sampling.values(), sampling, own_sampling), path_text(path)
        )

    def _model_values(self, own: Values, base: Sequence[Values], flags: Values) -> Values:
        values = layered(MODEL, *base, own, flags)
        if values["source"].value is None:
            values["source"] = values["name"]
        elif values["name"].value is None:
            values["name"] = Sourced(default_name(values["source"].value), DEFAULT)
        return values

    def _add_model(self, values: Values, sampling: Values, label: str = "") -> list[ModelSettings]:
        template = values["chat_template"]
        try:
            digest = file_digest(template.value) if template.value else None
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            self.problems.append(Problem(template.origin, "chat_template", message))
            return []
        model = make_model(values, sampling, template_digest=digest)
        both = {**values, **{f"sampling.{key}": one for key, one in sampling.items()}}
        known = {
            **self._model,
            **{f"sampling.{key}": setting for key, setting in self._sampling.items()},
        }
        self._section("models", model.name, label or f"model {model.name}", both, known)
        return [model]

    # -- pipelines -------------------------------------------------------------------------------

    def _pipelines(self) -> tuple[PipelineSettings, ...]:
        known = keyed(PIPELINE)
        found = []
        for path in self._reader.tables(("pipelines",)):
            own = self._reader.table(path, known)
            if self._reader.get((*path, "file")) is None:
                self._reader.add(path, "has no file; file says which Python file it is")
            if "file" not in own:
                continue
            values = layered(PIPELINE, own)
            file = values["file"]
            if values["name"].value is None:
                values["name"] = Sourced(Path(file.value).stem, DEFAULT)
            try:
                digest = file_digest(file.value)
            except OSError as error:
                message = f"cannot be read: {error.strerror}"
                self.problems.append(Problem(file.origin, "file", message))
                continue
            found.append(PipelineSettings(**plain(values), file_digest=digest or ""))
            self._section("pipelines", values["name"].value, path_text(path), values, known)
        return tuple(found)


def default_name(source: str) -> str:
    """The name of a model whose source alone is given; as `loading.named.locate` names it."""
    path = Path(source)
    if path.is_absolute():
        return path.stem if path.suffix == ".gguf" else path.name
    return source


def file_digest(path: str) -> str | None:
    """SHA-256 of a regular file's content; None if `path` is none. Raises OSError."""
    from tidemill.base.files import is_regular, open_regular

    if not Path(path).is_absolute() or not is_regular(Path(path)):
        return None
    with open_regular(path) as file:
        return hashlib.sha256(file.read()).hexdigest()
