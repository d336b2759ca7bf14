"""The structure of `csrc/` in docs/kernels.md: who includes whom, one place for products."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
# What a room may include beside itself. Everything points downward: there is no circle.
ROOMS: dict[str, set[str]] = {
    "runtime": set(),
    "kernels": set(),
    "text": set(),
    "memory": {"runtime", "kernels"},
    "sample": {"runtime", "kernels", "memory"},
    "model": {"runtime", "kernels", "memory"},
    "step": {"runtime", "kernels", "memory", "sample", "model"},
}
# Kernels can be compiled on emulated instructions, which are the check's.
EXCEPTIONS = {("kernels/tables/avx512.cpp", "tests")}
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def _sources(room: str) -> list[Path]:
    return sorted(p for p in (CSRC / room).rglob("*") if p.suffix in (".h", ".cpp", ".inl"))


def _violations() -> Iterator[str]:
    for room, allowed in ROOMS.items():
        for path in _sources(room):
            name = str(path.relative_to(CSRC))
            for included in _INCLUDE.findall(path.read_text()):
                target = included.split("/")[0]
                if target not in {room} | allowed and (name, target) not in EXCEPTIONS:
                    yield f"{name} includes {included}: {room}/ may include {sorted(allowed)}"


def test_rooms_include_only_those_below_them() -> None:
    assert list(_violations()) == []


def test_every_room_is_in_the_table() -> None:
    assert {p.name for p in CSRC.iterdir() if p.is_dir()} == set(ROOMS) | {"tests"}


def test_only_the_bindings_know_python() -> None:
    for room in ROOMS:
        for path in _sources(room):
            assert not re.search(r"#\s*include\s+<(nanobind|Python)", path.read_text()), path


def test_every_product_is_computed_in_one_place() -> None:
    calls = {
        str(path.relative_to(CSRC)): found
        for room in ROOMS
        if room != "kernels"
        for path in _sources(room)
        if (found := len(re.findall(r"[.>]gemm\(", path.read_text())))
    }
    assert calls == {"model/products.cpp": 1}
