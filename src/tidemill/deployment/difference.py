"""What a new deployment changes in a running one, and what each change takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tidemill.base.errors import config_error
from tidemill.deployment.deployment import Deployment, Section
from tidemill.deployment.settings import Apply, Setting
from tidemill.deployment.show import shown_value


@dataclass(frozen=True, slots=True)
class Change:
    """One changed setting.

    Attributes:
        table: ``server``, ``admission``, ``security``, ``limits``, ``prices``, ``quotas``,
            ``upstream``, ``models`` or ``pipelines``.
        name: of the model or pipeline; else empty.
        key: the setting; of a file whose content changed, the setting that names it.
        before, after: the values as TOML; of secrets, that there is one.
        apply: what the change takes.
    """

    table: str
    name: str
    key: str
    before: str
    after: str
    apply: Apply

    def __str__(self) -> str:
        owner = f"{self.table[:-1]} {self.name}" if self.name else self.table
        what = f"{self.before} -> {self.after}" if self.before != self.after else "content changed"
        return f"{owner}.{self.key}: {what}"


@dataclass(frozen=True, slots=True)
class Difference:
    """All changes between two deployments. Models and pipelines without one are in no list.

    Attributes:
        models_added, models_removed: names; a version is a model ``name@version``.
        models_restarted: names of models whose engine must be replaced.
        models_updated: names of models, or of names with versions, whose changes are applied in
            place: requests in flight keep what they began with.
        pipelines_added, pipelines_removed, pipelines_restarted: names.
        names_added, names_removed: names with versions.
        server: changes of the server as a whole that are applied in place.
        rejected: changes that need another start of the server.
        changes: every changed setting.
    """

    models_added: tuple[str, ...]
    models_removed: tuple[str, ...]
    models_restarted: tuple[str, ...]
    models_updated: tuple[str, ...]
    pipelines_added: tuple[str, ...]
    pipelines_removed: tuple[str, ...]
    pipelines_restarted: tuple[str, ...]
    names_added: tuple[str, ...]
    names_removed: tuple[str, ...]
    server: tuple[Change, ...]
    rejected: tuple[Change, ...]
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.changes or any(names for _, _, names in self._lists()))

    def check(self) -> None:
        """Raise if a change needs another start of the server; then nothing may be applied.

        Raises:
            TidemillError: kind CONFIG, naming every such setting.
        """
        if self.rejected:
            first = self.rejected[0]
            raise config_error(
                f"{first.table}.{first.key}",
                f"a reload cannot change {'; '.join(map(str, self.rejected))}; nothing was "
                "changed: restart the server, or take that back",
            )

    def as_json(self) -> dict[str, Any]:
        """The difference for administrators' JSON; empty lists are left out."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: [str(one) for one in listed] for name, listed in found.items() if listed}

    def lines(self) -> list[str]:
        """The changes for people, one a line."""
        named = [f"{what} {name}: {done}" for what, done, names in self._lists() for name in names]
        return [*named, *map(str, self.changes)]

    def _lists(self) -> list[tuple[str, str, tuple[str, ...]]]:
        return [
            ("model", "added", self.models_added),
            ("model", "removed", self.models_removed),
            ("model", "engine replaced", self.models_restarted),
            ("model", "changed in place", self.models_updated),
            ("name", "added", self.names_added),
            ("name", "removed", self.names_removed),
            ("pipeline", "added", self.pipelines_added),
            ("pipeline", "removed", self.pipelines_removed),
            ("pipeline", "restarted", self.pipelines_restarted),
        ]


def difference(old: Deployment, new: Deployment) -> Difference:
    """What must be done so that a server of `old` becomes one of `new`."""
    changes = tuple(_changes(old, new))
    if bool(old.upstream) != bool(new.upstream):
        # Its routes are those of a server that has one, or of one that has none.
        changes = tuple(
            replace(change, apply=Apply.SERVER) if change.table == "upstream" else change
            for change in changes
        )
    models = {model.name for model in old.models}, {model.name for model in new.models}
    names = {name.name for name in old.names}, {name.name for name in new.names}
    pipelines = {p.name for p in old.pipelines}, {p.name for p in new.pipelines}
    restarted = _names(changes, "models", Apply.ENGINE)
    updated = tuple(
        name for name in _names(changes, "models", Apply.IN_PLACE) if name not in restarted
    )
    return Difference(
        models_added=tuple(m.name for m in new.models if m.name not in models[0]),
        models_removed=tuple(m.name for m in old.models if m.name not in models[1]),
        models_restarted=restarted,
        models_updated=updated,
        pipelines_added=tuple(p.name for p in new.pipelines if p.name not in pipelines[0]),
        pipelines_removed=tuple(p.name for p in old.pipelines if p.name not in pipelines[1]),
        pipelines_restarted=_names(changes, "pipelines", Apply.ENGINE),
        names_added=tuple(n.name for n in new.names if n.name not in names[0]),
        names_removed=tuple(n.name for n in old.names if n.name not in names[1]),
        server=tuple(c for c in changes if not c.name and c.apply is Apply.IN_PLACE),
        rejected=tuple(c for c in changes if c.apply is Apply.SERVER),
        changes=changes,
    )


def _names(changes: tuple[Change, ...], table: str, apply: Apply) -> tuple[str, ...]:
    found = (c.name for c in changes if c.table == table and c.apply is apply)
    return tuple(dict.fromkeys(found))


def _changes(old: Deployment, new: Deployment) -> Iterator[Change]:
    before = {_identity(section): section for section in old.sections}
    digests = _digests(old), _digests(new)
    for section in new.sections:
        former = before.get(_identity(section))
        if former is None:
            continue
        for key, setting in section.settings.items():
            if key in section.values and key in former.values:
                yield from _change(former, section, key, setting, digests)


def _identity(section: Section) -> tuple[str, str, bool]:
    # A name that gets versions is another thing than the model it was.
    return section.table, section.name, "source" in section.values


def _change(
    old: Section,
    new: Section,
    key: str,
    setting: Setting,
    digests: tuple[dict[tuple[str, str, str], Any], ...],
) -> Iterator[Change]:
    before, after = (section.values[key].value for section in (old, new))
    place = (new.table, new.name, key)
    contents = [found.get(place) for found in digests]
    if before != after or contents[0] != contents[1]:
        texts = shown_value(setting, before), shown_value(setting, after)
        yield Change(new.table, new.name, key, texts[0], texts[1], setting.apply)


def _digests(deployment: Deployment) -> dict[tuple[str, str, str], Any]:
    """Digests of files by the setting that names them."""
    found: dict[tuple[str, str, str], Any] = {
        ("models", m.name, "chat_template"): m.template_digest for m in deployment.models
    }
    found |= {("pipelines", p.name, "file"): p.file_digest for p in deployment.pipelines}
    return found
