"""Tables of models, their versions and the traffic between them become `ModelSettings`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill.base.errors import TidemillError
from tidemill.deployment import toml_text
from tidemill.deployment.checks import check_name
from tidemill.deployment.deployment import (
    ModelSettings,
    Section,
    VersionedName,
    make_model,
)
from tidemill.deployment.problems import Problem
from tidemill.deployment.reading import DEFAULT, Reader, Sourced, Values, layered, read_given
from tidemill.deployment.request_settings import sampling_settings
from tidemill.deployment.settings import MODEL, TRAFFIC, VERSION, keyed
from tidemill.deployment.toml_text import path_text, shortened

IDENTITY = ("name", "source", "file", "revision", "aliases", "adapters", "adapter_folder")
"""Settings of a model that ``[defaults]`` cannot hold."""

OF_THE_NAME = ("name", "aliases")
"""Settings of a model that its versions cannot hold."""

MAX_FILE_BYTES = 4 * 2**20
"""Size of a chat template's or pipeline's file."""


class ModelReader:
    """Reads ``[defaults]`` and ``[[models]]``.

    Args:
        reader: of the document.
        given: values of flags and environment variables.
        keep_alive: the server's.

    Attributes:
        models: the models and versions that could be read.
        names: the names that have versions.
        sections: of models, versions and names.
    """

    def __init__(self, reader: Reader, given: Mapping[str, Sourced], keep_alive: Sourced) -> None:
        self.models: list[ModelSettings] = []
        self.names: list[VersionedName] = []
        self.sections: list[Section] = []
        self._reader = reader
        self._known = keyed(MODEL)
        self._sampling = keyed(sampling_settings())
        self._flags = read_given(given, MODEL, reader.problems)
        self._served_name = given.get("served_name")
        pin = given.get("pin")
        self._all_pins = {} if pin is None else dict.fromkeys(pin.value, pin)
        self._pins = dict(self._all_pins)  # that name no model yet
        common = {key: s for key, s in self._known.items() if key not in IDENTITY}
        defaults = reader.table(("defaults",), common, ("sampling",), "[defaults]")
        self._base: list[Values] = [{"keep_alive": keep_alive}, defaults]
        self._base_sampling = reader.table(
            ("defaults", "sampling"), self._sampling, note="[defaults.sampling]"
        )

    def read(self, more: Sequence[Sourced]) -> None:
        """Read all models; `more` are sources from the command line.

        ``--pin`` names models by any of their names or as the command line does.
        """
        paths = self._reader.tables(("models",))
        self._check_one_model(len(paths) + len(more))
        for path in paths:
            self._model(path)
        source = msgspec.structs.replace(self._known["source"], flag=True)
        for one in more:
            own = read_given({"source": one}, [source], self._reader.problems)
            if own:
                sampling = layered(self._sampling.values(), self._base_sampling)
                self._add(self._values(own), sampling, typed=one.value)
        for name, pin in self._pins.items():
            message = f"no model here is called {shortened(name)}"
            if self.models:
                message += "; there are " + ", ".join(model.name for model in self.models[:20])
            self._reader.problems.append(Problem(pin.origin, "", message))

    def _check_one_model(self, count: int) -> None:
        served_name = self._served_name
        if served_name is not None:
            self._check_served_name(served_name)
        if served_name is not None and count == 1:
            # Counts before the file's; its first name is the one in answers.
            first, *others = dict.fromkeys(served_name.value)
            self._flags["name"] = Sourced(first, served_name.origin)
            self._flags["aliases"] = Sourced(tuple(others), served_name.origin)
        elif served_name is not None:
            self._belongs_to_one(served_name, "name", count)
        for key, one in self._flags.items():
            if self._known[key].one_model and count != 1:
                self._belongs_to_one(one, key, count)

    def _check_served_name(self, flag: Sourced) -> None:
        for name in flag.value:
            try:
                check_name(name)
            except ValueError as error:
                self._reader.problems.append(Problem(flag.origin, "", f"{shortened(name)} {error}"))

    def _belongs_to_one(self, flag: Sourced, key: str, count: int) -> None:
        message = f"belongs to one model, and there are {count}; set {key} in the model's table"
        self._reader.problems.append(Problem(flag.origin, "", message))

    def _model(self, path: toml_text.Path) -> None:
        reader = self._reader
        own = reader.table(path, self._known, ("sampling", "versions", "traffic"))
        sampling = reader.table((*path, "sampling"), self._sampling)
        versions = reader.tables((*path, "versions"))
        if all(reader.get((*path, key)) is None for key in ("name", "source")):
            reader.add(path, "has neither name nor source; source says which model it is")
        elif versions and reader.get((*path, "name")) is None:
            reader.add(path, "has versions and no name; name is what clients use")
        if not {"name", "source"} & own.keys():
            return
        values = self._values(own, label=path_text(path))
        if versions:
            self._versions(path, versions, own, sampling, values)
            return
        if reader.get((*path, "traffic")) is not None:
            reader.add((*path, "traffic"), "is for a name with versions; add [[models.versions]]")
        self._add(
            values,
            layered(self._sampling.values(), self._base_sampling, sampling),
            label=path_text(path),
        )

    def _values(self, *own: Values, label: str = "") -> Values:
        values = layered(MODEL, *self._base, *own, self._flags)
        if values["source"].value is None:
            # The file's name, whatever name --served-name gives it.
            named = layered([self._known["name"]], *own)["name"]
            values["source"] = Sourced(self._source_of(named, label), DEFAULT)
        elif values["name"].value is None:
            values["name"] = Sourced(self._name_of(values["source"], label), DEFAULT)
        return values

    def _source_of(self, name: Sourced, label: str) -> str:
        """The source of a model that has a name alone: the model of that name."""
        try:
            return str(self._known["source"].kind.read(name.value, self._reader.document.folder))
        except ValueError as error:
            self._reader.problems.append(
                Problem(name.origin, f"{label}.name", f"{error}; set source")
            )
            return str(name.value)

    def _name_of(self, source: Sourced, label: str) -> str:
        """The name of a model that has a source alone."""
        name = default_name(source.value)
        try:
            return str(self._known["name"].kind.read(name, self._reader.document.folder))
        except ValueError:
            message = f"{shortened(name)} cannot be a model's name; set name"
            self._reader.problems.append(
                Problem(source.origin, label and f"{label}.source", message)
            )
            return name

    # -- versions --------------------------------------------------------------------------------

    def _versions(
        self,
        path: toml_text.Path,
        versions: Sequence[toml_text.Path],
        parent: Values,
        parent_sampling: Values,
        values: Values,
    ) -> None:
        name = str(values["name"].value)
        known = {key: s for key, s in self._known.items() if key not in OF_THE_NAME}
        known |= keyed(VERSION)
        found: dict[str, Sourced] = {}
        place = len(self.sections)  # of the name, before its versions
        for version in versions:
            own = self._reader.table(version, known, ("sampling",))
            sampling = self._reader.table((*version, "sampling"), self._sampling)
            if self._reader.get((*version, "version")) is None:
                self._reader.add(version, 'has no version, such as version = "2"')
            if "version" not in own:
                continue
            number = own.pop("version")
            if number.value in found:
                first = found[number.value].origin
                self._reader.add_value(
                    (*version, "version"), f"{number.value!r} is at {first} too; change one"
                )
                continue
            found[number.value] = number
            merged = self._values(parent, own, label=path_text(version))
            merged["name"] = Sourced(f"{name}@{number.value}", number.origin)
            merged["aliases"] = Sourced((), DEFAULT)
            layers = (self._base_sampling, parent_sampling, sampling)
            self._add(
                merged,
                layered(self._sampling.values(), *layers),
                label=path_text(version),
                of=name,
            )
        if found:
            section = self._name(path, name, values, tuple(found))
            self.sections.insert(place, section)

    def _name(
        self, path: toml_text.Path, name: str, values: Values, versions: tuple[str, ...]
    ) -> Section:
        """The name that has these versions, and its rule of traffic."""
        rule = self._traffic((*path, "traffic"), versions)
        both = {"name": values["name"], "aliases": values["aliases"], TRAFFIC.key: rule}
        known = {**self._known, TRAFFIC.key: TRAFFIC}
        self.names.append(VersionedName(name, values["aliases"].value, versions, rule.value))
        return Section("models", name, path_text(path), both, known)

    def _traffic(self, path: toml_text.Path, versions: tuple[str, ...]) -> Sourced:
        from tidemill.server.host.rollout.traffic import Single, parse_traffic, versions_of

        raw = self._reader.get(path)
        default = Single(version=versions[0])
        if raw is None:
            return Sourced(default, DEFAULT)
        where = path_text(path)
        try:
            rule = parse_traffic(raw, where)
        except TidemillError as error:
            place = self._deepest(path, error.param or where)
            message = error.message.removeprefix(path_text(place)).lstrip(": ")
            self._reader.add_value(place, message)
            return Sourced(default, DEFAULT)
        for version in versions_of(rule):
            if version not in versions:
                known = ", ".join(versions)
                self._reader.add_value(path, f"names the version {version!r}; there are {known}")
        return Sourced(rule, self._reader.document.value(path))

    def _deepest(self, path: toml_text.Path, text: str) -> toml_text.Path:
        """The path below `path` that messages call `text`, or the closest one around it."""
        positions = self._reader.document.positions
        below = (p for p in {*positions.keys, *positions.values} if p[: len(path)] == path)
        return max((p for p in below if text.startswith(path_text(p))), key=len, default=path)

    # -- one model -------------------------------------------------------------------------------

    def _add(
        self,
        values: Values,
        sampling: Values,
        *,
        label: str = "",
        of: str | None = None,
        typed: str | None = None,
    ) -> None:
        name, aliases = values["name"].value, values["aliases"].value
        for one in (name, *aliases, of, typed):
            pin = self._all_pins.get(one)
            if pin is not None:
                values["pin"] = Sourced(True, pin.origin)
                self._pins.pop(one, None)
        template = values["chat_template"]
        digest = None
        if template.value is not None and Path(template.value).is_absolute():
            try:
                digest = file_digest(template.value)
            except ValueError as error:
                key = f"{label}.chat_template" if label else ""
                self._reader.problems.append(Problem(template.origin, key, str(error)))
        model = make_model(values, sampling, of=of, template_digest=digest)
        both = {**values, **{f"sampling.{key}": one for key, one in sampling.items()}}
        known: dict[str, Any] = {
            **self._known,
            **{f"sampling.{key}": setting for key, setting in self._sampling.items()},
        }
        self.models.append(model)
        self.sections.append(
            Section("models", model.name, label or f"model {model.name}", both, known)
        )


def default_name(source: str) -> str:
    """The name of a model whose source alone is given; as `loading.locate` names it.

    Of an address it is the file's, for the rest may hold a password or a token.
    """
    path = Path(source)
    if path.is_absolute():
        path = path.resolve()
    elif "://" in source and not source.startswith("hf://"):
        path = Path(source.partition("://")[2].partition("?")[0].partition("#")[0])
    else:
        return source.removeprefix("hf://")
    return path.stem if path.suffix == ".gguf" else path.name


def file_digest(path: str) -> str:
    """SHA-256 of a regular file of at most `MAX_FILE_BYTES`. Raises ValueError."""
    from tidemill.base.files import open_regular

    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES} bytes")
    return hashlib.sha256(data).hexdigest()
