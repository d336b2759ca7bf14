"""Checks every import of src/tidemill against .ci/rooms.toml (make lint).

`--write` writes the table of docs/architecture.md anew; without it a table that differs is a fault.
"""

from __future__ import annotations

import sys
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / ".ci" / "rooms.toml"
PAGE = ROOT / "docs" / "architecture.md"
HOUSE = "tidemill"
BEGIN, END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->"

# Whether a module's line is inside a function or a condition (TYPE_CHECKING): not at import time.
Deferred = Callable[[str, int], bool]


@dataclass(frozen=True, kw_only=True)
class Room:
    """A row of the table; all names with slashes. See the head of rooms.toml."""

    name: str
    purpose: str
    imports: list[str]
    packages: list[str] = field(default_factory=list)
    packages_in: dict[str, list[str]] = field(default_factory=dict)
    deferred: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Import:
    """One import: module names with slashes (a third-party package by its first name)."""

    importer: str
    imported: str
    line: int
    deferred: bool
    external: bool

    def __str__(self) -> str:
        return f"{self.importer}.py:{self.line} imports {self.imported}"


class House:
    """The modules and imports of a graph, and the rooms they belong to."""

    def __init__(self, graph: grimp.ImportGraph, rooms: list[Room], deferred: Deferred) -> None:
        names = [n for n in graph.modules if n.partition(".")[0] == HOUSE]
        self.modules = {_slashes(n) for n in names}
        self.packages = {m.rpartition("/")[0] for m in self.modules}
        self.rooms = {room.name: room for room in rooms}
        self._expand_patterns()
        self.imports = [i for n in sorted(names) for i in _imports(graph, n, deferred)]

    def _expand_patterns(self) -> None:
        self.patterns: dict[str, str] = {}  # room made from a pattern -> the pattern
        for name in [n for n in self.rooms if n.endswith("/*")]:
            for package in sorted(self.packages):
                if package.rpartition("/")[0] == name[:-2]:
                    self.patterns[package] = name

    def row(self, module: str) -> Room | None:
        """The row that a module belongs to, by its longest name."""
        room = self.room(module)
        return self.rooms[self.patterns.get(room, room)] if room else None

    def room(self, module: str) -> str:
        """The name of the room that a module belongs to; empty: none."""
        while module and module not in self.rooms and module not in self.patterns:
            module = module.rpartition("/")[0]
        return module

    def members(self, name: str) -> list[str]:
        """Modules of a row."""
        return sorted(m for m in self.modules if (row := self.row(m)) and row.name == name)


def _slashes(module: str) -> str:
    return module.partition(".")[2].replace(".", "/") or "__init__"


def _imports(graph: grimp.ImportGraph, name: str, deferred: Deferred) -> Iterator[Import]:
    for target in sorted(graph.find_modules_directly_imported_by(name)):
        package = target.partition(".")[0]
        external = package != HOUSE
        if external and package in sys.stdlib_module_names:
            continue
        for detail in graph.get_import_details(importer=name, imported=target):
            line = detail["line_number"]
            imported = package if external else _slashes(target)
            yield Import(_slashes(name), imported, line, deferred(name, line), external)


def permitted(house: House, found: Import, row: Room) -> str:
    """Why an import is against its room's row; empty: it is not."""
    if found.external:
        wanted = found.imported
        modules = row.packages_in.get(wanted)
        inner = found.importer[len(house.room(found.importer)) + 1 :]
        if wanted in row.packages or (modules and inner in modules):
            return ""
        if modules:
            return f"in {row.name} only {', '.join(modules)} may import {wanted}"
    else:
        if house.room(found.importer) == house.room(found.imported):
            return ""
        target = house.row(found.imported)
        if target is None:
            return ""  # its own fault
        if target is row:
            return f"rooms of {row.name} may not import each other"
        wanted = target.name
        if wanted in row.imports:
            return ""
    if wanted in row.deferred:
        return "" if found.deferred else f"{row.name} may import {wanted} in functions alone"
    return f"{row.name} may not import {wanted}"


def faults(house: House, table: dict[str, Any]) -> Iterator[str]:
    """Everything that is wrong, a line each."""
    yield from _faults_of_rows(house)
    yield from _homeless(house)
    excepted = {
        (e["importer"], imported): False
        for e in table.get("exceptions", ())
        for imported in e["imported"]
    }
    for found in house.imports:
        row = house.row(found.importer)
        why = permitted(house, found, row) if row else ""
        if not why:
            continue
        if (found.importer, found.imported) in excepted:
            excepted[found.importer, found.imported] = True
        else:
            yield f"{found}: {why} (.ci/rooms.toml)"
    for (importer, imported), used in excepted.items():
        if not used:
            yield f"{importer} needs no exception for {imported}: delete it from .ci/rooms.toml"
    for process, rules in table.get("processes", {}).items():
        yield from _faults_of_process(house, process, rules["rooms"], rules["never"])


def _faults_of_rows(house: House) -> Iterator[str]:
    above: set[str] = set()
    for name, row in house.rooms.items():
        if not house.members(name):
            yield f"the room {name} has no module: delete its row from .ci/rooms.toml"
        wanted = [*row.imports, *(d for d in row.deferred if d in house.rooms)]
        for other in wanted:
            if other not in above:
                what = "is below it" if other in house.rooms else "is no room"
                yield f"the row of {name} imports {other}, which {what} in .ci/rooms.toml"
        above.add(name)


def _homeless(house: House) -> Iterator[str]:
    """Modules without a room; the `__init__` of a package of rooms needs none without imports."""
    busy = {i.importer for i in house.imports} | {i.imported for i in house.imports}
    for module in sorted(house.modules):
        around = "" if module == "__init__" else f"{module}/"
        holds_rooms = any(name.startswith(around) for name in house.rooms)
        if not house.room(module) and (module in busy or not holds_rooms):
            yield f"{module} belongs to no room: give it one in .ci/rooms.toml (its head says how)"


def _faults_of_process(
    house: House, process: str, rooms: list[str], never: list[str]
) -> Iterator[str]:
    """What a process has loaded once `rooms` are imported, and may not; each with a way there."""
    at_import: dict[str, list[Import]] = {}
    for found in house.imports:
        if not found.deferred:
            at_import.setdefault(found.importer, []).append(found)
    start = [m for name in rooms for m in house.members(name)]
    reached_by: dict[str, Import | None] = dict.fromkeys(start)
    queue, named = deque(start), set()
    while queue:
        module = queue.popleft()
        for found in at_import.get(module, ()):
            for loaded in _loaded(found):
                row = None if found.external else house.row(loaded)
                name = row.name if row else loaded
                if name in never and name not in named:
                    named.add(name)
                    yield f"the {process} loads {name} at import: {_way(found, reached_by)}"
                if not found.external and loaded not in reached_by:
                    reached_by[loaded] = found
                    queue.append(loaded)


def _loaded(found: Import) -> Iterator[str]:
    """What an import loads: the packages around a module come with it."""
    name = found.imported
    while name:
        yield name
        name = name.rpartition("/")[0]


def _way(last: Import, reached_by: dict[str, Import | None]) -> str:
    steps = [last]
    while step := reached_by[steps[-1].importer]:
        steps.append(step)
    return " <- ".join(map(str, steps))


def drawn(house: House) -> str:
    """The table of docs/architecture.md."""
    lines = ["| room | purpose | may import | packages |", "|---|---|---|---|"]
    for name, row in house.rooms.items():
        shown = f"`{name}/`" if name in house.packages or name.endswith("*") else f"`{name}.py`"
        rooms = [*row.imports, *(f"({d})" for d in row.deferred if d in house.rooms)]
        packages = [*row.packages, *row.packages_in]
        packages += [f"({d})" for d in row.deferred if d not in house.rooms]
        cells = (shown, row.purpose, ", ".join(rooms) or "nothing", ", ".join(packages))
        lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


@cache
def _source(module: str) -> list[str]:
    path = ROOT / "src" / module.replace(".", "/")
    package = path / "__init__.py"
    return (package if package.exists() else path.with_suffix(".py")).read_text().splitlines()


def _indented(module: str, line: int) -> bool:
    return _source(module)[line - 1][:1].isspace()


def rows(table: dict[str, Any]) -> list[Room]:
    """The rooms of a table, in its order."""
    return [Room(name=name, **row) for name, row in table["rooms"].items()]


def main() -> int:
    table = tomllib.loads(TABLE.read_text())
    graph = grimp.build_graph(HOUSE, include_external_packages=True, cache_dir=None)
    house = House(graph, rows(table), _indented)
    found = list(faults(house, table))
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    old, _, tail = rest.partition(END)
    new = drawn(house)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(head + BEGIN + new + END + tail)
    elif old != new:
        where = PAGE.relative_to(ROOT)
        found.append(f"the table of {where} is not up to date: run .ci/rooms.py --write")
    print("\n".join(found) or f"{len(house.imports)} imports keep to the table of rooms")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
