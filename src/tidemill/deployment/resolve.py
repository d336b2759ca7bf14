"""A deployment from a file, flags and defaults: complete, or an error with every problem.

What counts first: a flag, then an environment variable, then the model's table, then
``[defaults]``, then the default. A flag about models applies to every model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Level
from tidemill.deployment.deployment import (
    Deployment,
    PipelineSettings,
    Section,
    ServerSettings,
    plain,
)
from tidemill.deployment.document import Document, read_document
from tidemill.deployment.models import ModelReader, file_digest
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
    PRICES,
    QUOTAS,
    SECURITY,
    SERVER,
    UPSTREAM,
    Setting,
    keyed,
)
from tidemill.deployment.toml_text import path_text
from tidemill.server.access.limits import Limits
from tidemill.server.admission.options import AdmissionOptions

Check = Callable[[Deployment], Iterable[tuple[str, str, str]]]
"""A further check of a deployment: section's label, key (or empty) and message of each problem."""


class DeploymentInputs(msgspec.Struct, frozen=True):
    """What a deployment is made from; it can be read again, for a reload.

    Attributes:
        file: the deployment file; None: flags and defaults alone.
        given: key -> value of a flag or an environment variable.
        models: sources of further models, from the command line.
        limits: ``NAME=VALUE``, from the command line.
        checks: see `resolve`.
    """

    file: Path | str | None = None
    given: Mapping[str, Sourced] = {}
    models: tuple[Sourced, ...] = ()
    limits: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    def resolve(self) -> Deployment:
        """Read the file and resolve the deployment. Raises DeploymentError with every problem."""
        return resolve(
            None if self.file is None else read_document(self.file),
            given=self.given,
            models=self.models,
            limits=self.limits,
            checks=self.checks,
        )


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
        if origin.source == "default":
            # The best place known: where the section is named, else the first that it sets.
            order = sorted(values, key=lambda k: k not in ("name", "source", "file", "version"))
            stated = (values[k].origin for k in order if values[k].origin.source != "default")
            origin = next(stated, DEFAULT)
        yield Problem(origin, f"{label}.{key}" if key else label, message)


class _Work:
    """One resolution; problems are collected in `problems`."""

    def __init__(self, document: Document, given: Mapping[str, Sourced]) -> None:
        self._given = given
        self._limits = keyed(limit_settings())
        elsewhere = {
            **dict.fromkeys(self._limits, "[limits]"),
            **dict.fromkeys((s.key for s in sampling_settings()), "[models.sampling]"),
            **dict.fromkeys((s.key for s in MODEL), "[[models]]"),
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
            (
                "server",
                "admission",
                "security",
                "limits",
                "prices",
                "quotas",
                "upstream",
                "defaults",
                "models",
                "pipelines",
            )
        )
        server = self._plain_table("server", SERVER)
        admission = self._plain_table("admission", ADMISSION)
        security = self._plain_table("security", SECURITY)
        bounds = self._limit_values(limits)
        prices = plain(self._plain_table("prices", PRICES))
        quotas = plain(self._plain_table("quotas", QUOTAS))
        upstream = plain(self._plain_table("upstream", UPSTREAM))
        read = ModelReader(self._reader, self._given, server["keep_alive"])
        read.read(models)
        self._sections += read.sections
        pipelines = self._pipelines()
        return Deployment(
            file=file,
            server=ServerSettings(**plain(server)),
            admission=AdmissionOptions.of(**plain(admission)),
            limits=Limits(**plain(bounds)),
            security=SecuritySettings(**plain(security)),
            prices=Prices.parse(prices["models"], "prices.models", prices["currency"]),
            quotas=Defaults({Level(level): limits for level, limits in quotas.items() if limits}),
            upstream={key: value for key, value in upstream.items() if value is not None},
            models=tuple(read.models),
            names=tuple(read.names),
            pipelines=pipelines,
            sections=tuple(self._sections),
        )

    def tables_with_problems(self) -> set[str]:
        """Tables of the file in which something is wrong; ``flags`` for the command line."""
        found = set()
        for problem in self.problems:
            in_file = problem.origin.source == "file"
            found.add(problem.key.partition(".")[0].partition("[")[0] if in_file else "flags")
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
            except ValueError as error:
                self._reader.add_value((*path, "file"), str(error))
                continue
            found.append(PipelineSettings(**plain(values), file_digest=digest))
            self._section("pipelines", values["name"].value, path_text(path), values, known)
        return tuple(found)
