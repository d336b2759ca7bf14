"""What is in force and where each value came from, as TOML with comments and as rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.deployment.deployment import Deployment, ModelSettings, Section
from tidemill.deployment.problems import Origin
from tidemill.deployment.settings import Setting
from tidemill.deployment.toml_text import literal, path_text

Own = Mapping[str, tuple[Any, str]]
"""Setting -> value and where it is from: what a model's files or its library entry say."""

# Names of options that programs keep secrets in, and the part of an address that is one.
_SECRET = re.compile(r"(?i)key|token|secret|password|passwd|credential")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_WITH_ADDRESSES = ("source", "options", "targets")
_UPSTREAM = ("targets", "routing", "privacy", "fallbacks")  # they name variables, never secrets
_HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Row:
    """A setting in force.

    Attributes:
        table: ``server``, ..., ``models`` or ``pipelines``.
        name: of the model or pipeline; else empty.
        key: the setting.
        value: as TOML; if nobody set it, what happens then.
        origin: where the value came from.
        written: whether `value` is as a deployment file would have it.
    """

    table: str
    name: str
    key: str
    value: str
    origin: Origin
    written: bool


def shown_value(setting: Setting, value: Any) -> str:
    """A value as TOML, without secrets."""
    if setting.secret:
        return f"{len(value)} {_HIDDEN}" if value else "-"
    text = setting.kind.show(value if setting.key in _UPSTREAM else _without_secrets(value))
    return without_credentials(text) if setting.key in _WITH_ADDRESSES else text


def without_credentials(text: str) -> str:
    """A text without the names and passwords of addresses in it."""
    return _CREDENTIALS.sub("***", text)


def rows(
    deployment: Deployment, own_of: Callable[[ModelSettings], Own] | None = None
) -> Iterator[Row]:
    """Every setting of a deployment in the order of its sections.

    Args:
        deployment: what is shown.
        own_of: what a model says itself; it counts where nobody set anything.
    """
    models = {model.name: model for model in deployment.models}
    for section in deployment.sections:
        own: Own = {}
        if section.table == "models" and section.name in models and own_of is not None:
            own = own_of(models[section.name])
        for key, setting in section.settings.items():
            if key in section.values:
                yield _row(section, key, setting, own)


def as_toml(found: Iterator[Row], deployment: Deployment, *, changed: bool = False) -> str:
    """Rows as a deployment file with origins in comments; read again it is the same deployment.

    Args:
        found: what `rows` gives.
        deployment: the same one.
        changed: leave out what is by default.
    """
    lines: list[str] = []
    versions = {model.name for model in deployment.models if model.of is not None}
    last: tuple[str, str, str] | None = None
    for row in found:
        sampling = "sampling" if row.key.startswith("sampling.") else ""
        place = (row.table, row.name, sampling)
        if changed and row.origin.source == "default" and row.key not in ("name", "source"):
            continue
        if place != last:
            last = place
            lines += ["", _header(row, sampling, version=row.name in versions)]
        lines.append(_line(row, version=row.name in versions))
    width = min(max((len(line) for line, _ in _parted(lines)), default=0), 60)
    return (
        "\n".join(
            f"{line:{width}}  # {comment}" if comment else line for line, comment in _parted(lines)
        ).strip()
        + "\n"
    )


def _header(row: Row, sampling: str, *, version: bool) -> str:
    table = "models.versions" if version else row.table
    if not row.name:
        return f"[{table}]"
    return f"[{table}.sampling]" if sampling else f"[[{table}]]"


_MARK = "\0"  # between a line and its comment; no TOML text holds it


def _line(row: Row, *, version: bool) -> str:
    key, value = row.key.removeprefix("sampling."), row.value
    if version and key == "name":
        key, value = "version", literal(row.name.rpartition("@")[2])
    elif version and key == "aliases":
        return f"# its name has the aliases{_MARK}{row.origin}"
    text = f"{path_text((key,))} = {value}" if row.written else f"# {key}: {value}"
    return f"{text}{_MARK}{row.origin}"


def _parted(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        text, _, comment = line.partition(_MARK)
        yield text, comment


def _row(section: Section, key: str, setting: Setting, own: Own) -> Row:
    found = section.values[key]
    if found.origin.source == "default" and key in own:
        value, said_by = own[key]
        text = shown_value(setting, value)
        return Row(section.table, section.name, key, text, Origin("model", said_by), False)
    if found.value is None:
        return Row(section.table, section.name, key, setting.unset, found.origin, False)
    text = shown_value(setting, found.value)
    written = (
        found.value is not None and not setting.secret and text == setting.kind.show(found.value)
    )
    return Row(section.table, section.name, key, text, found.origin, written)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _HIDDEN if _SECRET.search(key) and one else _without_secrets(one)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(one) for one in value]
    return value
