"""The check of imports (.ci/rooms.py) finds what is against the table of rooms."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import grimp
import pytest


def _script() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / ".ci" / "rooms.py"
    spec = importlib.util.spec_from_file_location("ci_rooms", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


rooms = _script()

MODULES = (
    "base.log",
    "sched.plan",
    "grammar.masks",
    "api.dialects.body",
    "api.dialects.red.chat",
    "api.dialects.blue.chat",
)


def table(**more: Any) -> dict[str, Any]:
    row = {"purpose": "-", "imports": []}
    return {
        "rooms": {
            "base": {**row, "packages_in": {"numpy": ["log"]}},
            "sched": {**row, "imports": ["base"], "deferred": ["psutil"]},
            "grammar": {**row, "imports": ["base"], "deferred": ["sched"]},
            "api/dialects": {**row, "imports": ["base"]},
            "api/dialects/*": {**row, "imports": ["base", "api/dialects"]},
        },
        **more,
    }


def faults(
    *imports: tuple[str, str],
    deferred: bool = False,
    modules: tuple[str, ...] = (),
    table: dict[str, Any] = table(),  # noqa: B008
) -> list[str]:
    """Of a house of MODULES with these imports."""
    graph = grimp.ImportGraph()
    names = {f"tidemill.{name}" for name in (*MODULES, *modules)}
    for name in list(names):
        while name := name.rpartition(".")[0]:
            names.add(name)
    for name in sorted(names):
        graph.add_module(name)
    for importer, imported in imports:
        target = f"tidemill.{imported}" if f"tidemill.{imported}" in names else imported
        if target not in graph.modules:
            graph.add_module(target, is_squashed=True)
        graph.add_import(
            importer=f"tidemill.{importer}", imported=target, line_number=7, line_contents="import"
        )
    house = rooms.House(graph, rooms.rows(table), lambda module, line: deferred)
    return list(rooms.faults(house, table))


def test_what_the_table_permits_is_no_fault() -> None:
    assert not faults(
        ("sched.plan", "base.log"),
        ("sched.plan", "json"),
        ("base.log", "numpy"),
        ("api.dialects.red.chat", "api.dialects.body"),
    )


@pytest.mark.parametrize(
    ("importer", "imported", "words"),
    [
        ("sched.plan", "grammar.masks", "sched may not import grammar"),
        ("base.log", "sched.plan", "base may not import sched"),
        ("sched.plan", "numpy", "sched may not import numpy"),
        ("grammar.masks", "sched.plan", "in functions alone"),
        ("sched.plan", "psutil", "in functions alone"),
        ("api.dialects.red.chat", "api.dialects.blue.chat", "may not import each other"),
        ("api.dialects.body", "api.dialects.red.chat", "may not import api/dialects/*"),
    ],
)
def test_an_import_that_is_not_listed_is_a_fault(importer: str, imported: str, words: str) -> None:
    [fault] = faults((importer, imported))
    assert words in fault
    assert f"{importer.replace('.', '/')}.py:7" in fault


def test_a_deferred_import_is_permitted_where_the_row_says_so() -> None:
    assert not faults(("grammar.masks", "sched.plan"), ("sched.plan", "psutil"), deferred=True)
    assert len(faults(("sched.plan", "grammar.masks"), deferred=True)) == 1


def test_a_package_is_permitted_to_the_named_modules_alone() -> None:
    [fault] = faults(("base.ids", "numpy"), modules=("base.ids",))
    assert "in base only log may import numpy" in fault


@pytest.mark.parametrize("module", ["stray", "store.tables", "api.other.chat"])
def test_a_module_without_a_room_is_a_fault(module: str) -> None:
    assert any(
        fault.startswith(f"{module.replace('.', '/')} belongs to no room")
        for fault in faults(modules=(module,))
    )


def test_a_new_dialect_needs_no_row() -> None:
    assert not faults(
        ("api.dialects.green.chat", "api.dialects.body"), modules=("api.dialects.green.chat",)
    )


def test_a_row_imports_rooms_above_it_alone() -> None:
    circle = table()
    circle["rooms"]["base"]["imports"] = ["sched", "attic"]
    assert faults(table=circle) == [
        "the row of base imports sched, which is below it in .ci/rooms.toml",
        "the row of base imports attic, which is no room in .ci/rooms.toml",
    ]


def test_a_row_without_modules_is_a_fault() -> None:
    stale = table()
    stale["rooms"]["attic"] = {"purpose": "-", "imports": []}
    [fault] = faults(table=stale)
    assert "attic has no module" in fault


def test_an_exception_holds_until_nothing_needs_it() -> None:
    with_exception = table(exceptions=[{"importer": "sched/plan", "imported": ["grammar/masks"]}])
    assert not faults(("sched.plan", "grammar.masks"), table=with_exception)
    [fault] = faults(table=with_exception)
    assert "sched/plan needs no exception for grammar/masks" in fault


def test_what_a_process_may_not_load_is_found_over_its_imports() -> None:
    api = table(processes={"API process": {"rooms": ["api/dialects/*"], "never": ["numpy"]}})
    way = [
        ("api.dialects.red.chat", "api.dialects.body"),
        ("api.dialects.body", "base.log"),
        ("base.log", "numpy"),
    ]
    [fault] = faults(*way, table=api)
    assert fault == (
        "the API process loads numpy at import: base/log.py:7 imports numpy"
        " <- api/dialects/body.py:7 imports base/log"
        " <- api/dialects/red/chat.py:7 imports api/dialects/body"
    )
    assert not faults(*way[:2], table=api)


def test_packages_around_an_imported_module_are_loaded_with_it() -> None:
    api = table(processes={"API process": {"rooms": ["sched"], "never": ["numpy"]}})
    api["rooms"]["base"]["packages"] = ["numpy"]
    [fault] = faults(("sched.plan", "base.log"), ("base", "numpy"), table=api)
    assert "base.py:7 imports numpy <- sched/plan.py:7 imports base/log" in fault
