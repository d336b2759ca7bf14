"""Draws the rooms of a source tree and their imports as SVG (make structure).

A room is a folder or a file of src/tidemill (or, `--inside server`, of one of its packages), or
csrc/. Each stands one floor above the highest room that it imports. An arrow that follows from
others is left out; one of a circle, or that .ci/rooms.toml excepts, is red. Inside a room are its
folders, and its loose files counted together. Circles of modules are named below.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

import grimp

HOUSE = "tidemill"
WIDTH, MARGIN, GAP, FLOOR = 1180, 16, 14, 34
ASIDE = 14  # of an arrow that runs up, which would hide one that runs down
CHARACTER, LINE, PAD = 6.1, 15, 8
MOST_CHIPS = 4  # of a line in a room
SUFFIXES = {".py", ".cpp", ".h", ".inl"}

Edges = dict[str, set[str]]


@dataclass
class Box:
    """A room as it is drawn: its name, a line on its size, lines of what is inside, its place."""

    name: str
    size: str
    inside: list[str]
    floor: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        longest = max(map(len, [f"{self.name}  {self.size}", *self.inside]))
        return longest * CHARACTER + 2 * PAD

    @property
    def height(self) -> float:
        return (1 + len(self.inside)) * LINE + PAD


def sources(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES)


def box_of(path: Path) -> Box:
    """A room's box: lines of source, and its folders by size."""
    files = sources(path) if path.is_dir() else [path]
    lines = {file: len(file.read_text().splitlines()) for file in files}
    total = sum(lines.values())
    size = f"{total / 1000:.1f}k lines" if total >= 1000 else f"{total} lines"
    if not path.is_dir():
        return Box(path.name, size, [])
    chips: defaultdict[str, int] = defaultdict(int)
    loose = 0
    for file in files:
        parts = file.relative_to(path).parts
        if len(parts) > 1:
            chips[parts[0] + "/"] += lines[file]
        elif file.name != "__init__.py":
            loose += 1
    inside = sorted(chips, key=lambda name: -chips[name])
    if loose:
        inside.append(f"{loose} file{'s' * (loose > 1)}")
    rows = [inside[i : i + MOST_CHIPS] for i in range(0, len(inside), MOST_CHIPS)]
    return Box(f"{path.name}/", size, ["  ".join(row) for row in rows])


def modules_of(src: Path) -> Edges:
    """Imports between modules."""
    sys.path.insert(0, str(src))
    graph = grimp.build_graph(HOUSE, cache_dir=None)
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def exceptions_of(root: Path) -> Edges:
    """Imports between modules that are against the table of rooms."""
    table = root / ".ci" / "rooms.toml"
    found: Edges = defaultdict(set)
    for one in tomllib.loads(table.read_text())["exceptions"] if table.exists() else ():
        found[_dotted(one["importer"])] |= {_dotted(name) for name in one["imported"]}
    return found


def _dotted(name: str) -> str:
    return f"{HOUSE}.{name.replace('/', '.')}"


def between_rooms(imports: Edges, package: str) -> Edges:
    """Imports between the rooms of a package, as names of boxes."""
    packages = {name.rpartition(".")[0] for name in imports}
    depth = package.count(".") + 2

    def room(module: str) -> str:
        first = ".".join(module.split(".")[:depth])
        name = first[len(package) + 1 :] or "__init__"
        return f"{name}/" if first in packages and first != package else f"{name}.py"

    rooms: Edges = defaultdict(set)
    for module, targets in imports.items():
        rooms[room(module)] |= {room(t) for t in targets}
    return {name: targets - {name} for name, targets in rooms.items()}


def reachable(edges: Edges, start: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    stack = list(start)
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack += edges.get(name, ())
    return seen


def circles(edges: Edges) -> list[list[str]]:
    """Groups of modules that import each other, over others or not."""
    ahead = {name: reachable(edges, edges[name]) for name in edges}
    groups = {
        tuple(sorted(other for other in ahead[name] if name in ahead[other]))
        for name in edges
        if name in ahead[name]
    }
    return [list(group) for group in sorted(groups)]


def without(edges: Edges, others: Edges) -> Edges:
    return {name: targets - others.get(name, set()) for name, targets in edges.items()}


def of_circles(edges: Edges) -> Edges:
    """The edges that lead back to where they come from."""
    return {
        name: {t for t in targets if name in reachable(edges, [t])}
        for name, targets in edges.items()
    }


def reduced(edges: Edges) -> Edges:
    """Without the edges that follow from others; `edges` has no circle."""
    return {
        name: {t for t in targets if t not in reachable(edges, targets - {t})}
        for name, targets in edges.items()
    }


def place(boxes: dict[str, Box], edges: Edges) -> float:
    """Put every box on its floor, near what it imports; returns the height of the drawing."""

    @cache
    def floor(name: str) -> int:
        return max((floor(t) + 1 for t in edges.get(name, ())), default=0)

    for name, box in boxes.items():
        box.floor = floor(name)
    _split_crowded_floors(boxes)
    top = max(box.floor for box in boxes.values())
    centre: dict[str, float] = {}
    y = MARGIN + sum(_height(boxes, f) + FLOOR for f in range(top + 1)) - FLOOR
    height = y + MARGIN
    for level in range(top + 1):
        row = [box for box in boxes.values() if box.floor == level]
        row.sort(key=lambda box: (_mean(centre, edges.get(box.name, ())), box.name))
        y -= _height(boxes, level)
        space = WIDTH - 2 * MARGIN - sum(box.width for box in row)
        gap = space / (len(row) + 1)
        x = MARGIN + gap
        for box in row:
            box.x, box.y = x, y
            centre[box.name] = x + box.width / 2
            x += box.width + gap
        y -= FLOOR
    return height


def _split_crowded_floors(boxes: dict[str, Box]) -> None:
    """Give a floor that is wider than the drawing several lines, each a floor of its own."""
    floors: defaultdict[int, list[Box]] = defaultdict(list)
    for box in boxes.values():
        floors[box.floor].append(box)
    level = -1
    for _, row in sorted(floors.items()):
        left = 0.0
        for box in sorted(row, key=lambda box: box.name):
            if left < box.width + GAP:
                level, left = level + 1, WIDTH - 2.0 * MARGIN
            left -= box.width + GAP
            box.floor = level


def _height(boxes: dict[str, Box], level: int) -> float:
    return max(box.height for box in boxes.values() if box.floor == level)


def _mean(centre: dict[str, float], names: Iterable[str]) -> float:
    at = [centre[name] for name in names]
    return sum(at) / len(at) if at else WIDTH / 2


def arrows(boxes: dict[str, Box], edges: Edges, colour: str) -> Iterator[str]:
    for name, targets in sorted(edges.items()):
        for target in sorted(targets):
            a, b = boxes[name], boxes[target]
            x, y, u, v = a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y
            if b.y < a.y:
                x, y, u, v = x + ASIDE, a.y, u + ASIDE, b.y + b.height
            bend = (v - y) / 2
            yield (
                f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} '
                f'{u:.0f} {v:.0f}" fill="none" stroke="{colour}"/>'
            )


def svg(boxes: dict[str, Box], edges: Edges, red: Edges, height: float, notes: list[str]) -> str:
    total = height + len(notes) * LINE + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total:.0f}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{total:.0f}" fill="#fff"/>',
    ]
    parts += arrows(boxes, edges, "#9aa7b4")
    parts += arrows(boxes, red, "#d64545")
    for box in boxes.values():
        parts.append(
            f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
            f'height="{box.height:.0f}" rx="4" fill="#f3f6f9" stroke="#52606d"/>'
        )
        x, y = box.x + PAD, box.y + LINE
        parts.append(
            f'<text x="{x:.0f}" y="{y:.0f}"><tspan font-weight="bold">{escape(box.name)}</tspan> '
            f'<tspan fill="#52606d">{box.size}</tspan></text>'
        )
        for i, line in enumerate(box.inside, 1):
            parts.append(
                f'<text x="{x:.0f}" y="{y + i * LINE:.0f}" fill="#52606d">{escape(line)}</text>'
            )
    for i, note in enumerate(notes):
        parts.append(f'<text x="{MARGIN}" y="{height + (i + 1) * LINE:.0f}">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def draw(root: Path, inside: str) -> str:
    """The drawing of a checkout, or of one of its packages."""
    imports = modules_of(root / "src")
    package = f"{HOUSE}.{inside}" if inside else HOUSE
    if inside:
        names = {name for name in imports if f"{name}.".startswith(f"{package}.")}
        imports = {name: imports[name] & names for name in names}
    excepted = exceptions_of(root)
    edges = between_rooms(without(imports, excepted), package)
    every = between_rooms(imports, package)
    folder = root / "src" / package.replace(".", "/")
    boxes = {name: box_of(folder / name) for name in sorted(edges)}
    if not inside:
        boxes["csrc/"] = box_of(root / "csrc")
        for room in ("backends/", "base/"):  # whose extension modules it becomes
            edges[room].add("csrc/")
    elif not edges["__init__.py"]:
        del boxes["__init__.py"], edges["__init__.py"]
    circular = of_circles(edges)
    red = {name: circular[name] | every[name] - edges[name] for name in edges}
    edges = reduced(without(edges, circular))
    height = place(boxes, edges)
    cut = len(HOUSE) + 1
    found = [", ".join(m[cut:].replace(".", "/") for m in c) for c in circles(imports)]
    notes = [f"circle of modules: {names}" for names in found] or ["no circle of modules"]
    return svg(boxes, edges, red, height, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--inside", default="", help="a package of src/tidemill")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.write_text(draw(args.root, args.inside))


if __name__ == "__main__":
    main()
