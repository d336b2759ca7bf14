"""Tables of a document or of flags become values of settings; what is wrong is collected."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidemill.deployment import toml_text
from tidemill.deployment.document import Document
from tidemill.deployment.kinds import ElementError
from tidemill.deployment.problems import MAX_SHOWN, Origin, Problem
from tidemill.deployment.settings import Setting
from tidemill.deployment.toml_text import path_text, shortened

# Words of other servers and earlier ideas -> the key here.
OTHER_KEYS = {
    "model": "source",
    "path": "source",
    "repo": "source",
    "from": "source",
    "id": "name",
    "served_name": "name",
    "alias": "aliases",
    "pinned": "pin",
    "ttl": "keep_alive",
    "context": "max_model_len",
    "context_length": "max_model_len",
    "ctx_size": "max_model_len",
    "num_ctx": "max_model_len",
    "n_ctx": "max_model_len",
    "parallel": "max_num_seqs",
    "num_thread": "threads",
    "quantization": "quantize",
    "kv_cache_dtype": "kv_dtype",
    "system_prompt": "system",
    "template": "chat_template",
    "tool_call_parser": "tool_format",
    "reasoning_parser": "reasoning_format",
    "cors_origins": "cors_origin",
    "allowed_hosts": "allowed_host",
    "trusted_proxies": "trusted_proxy",
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
    "level": "log_level",
    "format": "log_format",
    "repeat_penalty": "repetition_penalty",
    "temp": "temperature",
}


MAX_TABLES = 1000
"""Tables of one array, such as `[[models]]`."""


# The same for tables.
OTHER_TABLES = {
    "model": "models",
    "engines": "models",
    "pipeline": "pipelines",
    "limit": "limits",
    "default": "defaults",
    "logging": "server",
    "log": "server",
    "auth": "security",
    "tls": "security",
    "queue": "admission",
    "parameters": "sampling",
    "version": "versions",
    "rollout": "traffic",
    "price": "prices",
    "pricing": "prices",
    "quota": "quotas",
    "budgets": "quotas",
    "rate_limits": "quotas",
    "gateway": "upstream",
    "upstreams": "upstream",
}

_MOST_KNOWN = 12  # keys that a message lists


class Sourced(msgspec.Struct, frozen=True):
    """A setting's value as the server uses it, and where it came from."""

    value: Any
    origin: Origin


Values = dict[str, Sourced]
"""Key -> value; what nobody set is absent."""


class Reader(msgspec.Struct):
    """Reads tables of a document.

    Attributes:
        document: what is read.
        elsewhere: key -> name of the table of the file that has it, for hints.
        problems: what was found wrong.
    """

    document: Document
    elsewhere: Mapping[str, str]
    problems: list[Problem] = []

    def table(
        self,
        path: toml_text.Path,
        settings: Mapping[str, Setting],
        tables: Collection[str] = (),
        note: str = "",
    ) -> Values:
        """Read the settings of a table; an absent one has none.

        Args:
            path: of the table.
            settings: what it may hold, by key.
            tables: names of tables inside it, which are read separately.
            note: for the values' origins.
        """
        values: Values = {}
        for written, key, value in self._entries(path):
            if key in tables:
                continue
            place = (*path, written)
            setting = settings.get(key)
            if setting is None:
                self._unknown(place, key, value, [*settings, *tables])
            elif key in values:
                self.add(place, "is set twice, with dashes and with underscores; leave one out")
            else:
                self._read(values, place, setting, value, note)
        return values

    def tables(self, path: toml_text.Path) -> list[toml_text.Path]:
        """Paths of an array's tables; anything else is a problem."""
        value = self.get(path)
        if value is None:
            return []
        if not isinstance(value, list):
            name = path_text(tuple(part for part in path if isinstance(part, str)))
            self.add(path, f"must be a list of tables: write [[{name}]]")
            return []
        if len(value) > MAX_TABLES:
            self.add(path, f"has {len(value)} tables; at most {MAX_TABLES} are read")
        found = []
        for index, one in enumerate(value[:MAX_TABLES]):
            if isinstance(one, dict):
                found.append((*path, index))
            else:
                self.add_value((*path, index), f"must be a table, got {shortened(one)}")
        return found

    def get(self, path: toml_text.Path) -> Any:
        """The value at a path, whose last part may be written with dashes; None if absent."""
        value: Any = self.document.tree
        for part in path:
            if isinstance(part, int):
                value = value[part]
            elif not isinstance(value, dict):
                return None
            else:
                value = value.get(part, value.get(part.replace("_", "-")))
        return value

    def only(self, known: Collection[str]) -> None:
        """Every key of the document's root must be known."""
        for written, key, value in self._entries(()):
            if key not in known:
                self._unknown((written,), key, value, known)

    def add(self, path: toml_text.Path, message: str) -> None:
        """A problem at a key."""
        self.problems.append(Problem(self.document.key(path), path_text(path), message))

    def add_value(self, path: toml_text.Path, message: str) -> None:
        """A problem at a value."""
        self.problems.append(Problem(self.document.value(path), path_text(path), message))

    def _entries(self, path: toml_text.Path) -> Iterable[tuple[str, str, Any]]:
        """Keys as written, keys with underscores, and values of a table."""
        value = self.get(path)
        if value is None:
            return
        if not isinstance(value, dict):
            name = path_text(tuple(part for part in path if isinstance(part, str)))
            self.add_value(path, f"must be a table: write [{name}], got {shortened(value)}")
            return
        for written, one in value.items():
            yield written, written.replace("-", "_"), one

    def _read(
        self, values: Values, path: toml_text.Path, setting: Setting, value: Any, note: str
    ) -> None:
        try:
            read = setting.kind.read(value, self.document.folder)
        except ValueError as error:
            if isinstance(error, ElementError) and isinstance(value, list):
                path = (*path, error.index)
            self.add_value(path, explained(setting, value, error))
        else:
            values[setting.key] = Sourced(read, self.document.value(path, note))

    def _unknown(self, path: toml_text.Path, key: str, value: Any, known: Collection[str]) -> None:
        is_table = isinstance(value, dict) or (isinstance(value, list) and any(value))
        self.add(path, f"is no key here; {self._remedy(key, is_table, known)}")

    def _remedy(self, key: str, is_table: bool, known: Collection[str]) -> str:
        import difflib

        listed = "known are " + ", ".join(sorted(known))
        if len(known) > _MOST_KNOWN:
            listed = "docs/deployment.md lists the keys"
        if len(self.problems) > MAX_SHOWN:  # searching takes time, and nobody reads it
            return listed
        other = (OTHER_TABLES if is_table else OTHER_KEYS).get(key, key)
        if other in known:
            return f"did you mean {other}?"
        if other in self.elsewhere and not is_table:
            return f"{other} belongs in {self.elsewhere[other]}"
        if close := difflib.get_close_matches(key[:100], known, 1):
            return f"did you mean {close[0]}?"
        if close := difflib.get_close_matches(key[:100], self.elsewhere, 1, 0.85):
            return f"did you mean {close[0]} of {self.elsewhere[close[0]]}?"
        return listed


def explained(setting: Setting, value: Any, error: ValueError) -> str:
    """What is wrong with a value, without quoting a secret."""
    what = setting.kind.what
    if isinstance(error, ElementError):
        value, what = error.value, error.what
    if str(error):
        return str(error)
    got = "" if setting.secret else f", got {shortened(value)}"
    return f"must be {what}{got}"


def read_given(
    given: Mapping[str, Sourced], settings: Iterable[Setting], problems: list[Problem]
) -> Values:
    """Values of flags and environment variables; `given` has them as click converted them."""
    values: Values = {}
    for setting in settings:
        one = given.get(setting.key)
        if one is None or not setting.flag:
            continue
        try:
            values[setting.key] = Sourced(setting.kind.read(one.value, Path.cwd()), one.origin)
        except ValueError as error:
            problems.append(Problem(one.origin, "", explained(setting, one.value, error)))
    return values


def layered(settings: Iterable[Setting], *layers: Values) -> Values:
    """One value for every setting: of the last layer that has it, else its default."""
    values: Values = {}
    for setting in settings:
        found = next(
            (layer[setting.key] for layer in reversed(layers) if setting.key in layer), None
        )
        values[setting.key] = found or Sourced(default_of(setting), DEFAULT)
    return values


DEFAULT = Origin("default")


def default_of(setting: Setting) -> Any:
    """A setting's default as the server uses it."""
    return None if setting.default is None else setting.kind.read(setting.default, Path("/"))
