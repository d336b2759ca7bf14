"""Positions of keys and values: the same paths as tomllib finds, at the places where they stand."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import pytest

from tidemill.deployment.positions import MAX_DEPTH, Positions
from tidemill.deployment.toml_text import Path, literal, path_text

_KEYS = ("a", "b-c", "1", '"q r"', "'l.t'", '"\\u00e9\\""', '""', "true")
_SCALARS = (
    *("1", "0x1F", "1_000.5e3", "inf", "true", "1979-05-27 07:32:00Z", "07:32:00"),
    *('"x # no ] }"', '"\\\\"', "'a\\'", "''", '""', '"""\n[no]\ny = 1 "" \\" """""'),
    *("'''\n# no'''''", '"""a\\\n  b"""', '"""x\\"""b # ["""', '""""""', "''''''"),
)


class _Drawn:
    """Draws a valid document, never using a key twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0

    def key(self) -> str:
        self._number += 1
        own = self._random.choice((*_KEYS, "k"))
        quoted = own[0] in "\"'"
        own = f"{own[:-1]}_{self._number}{own[-1]}" if quoted else f"{own}_{self._number}"
        return own

    def dotted(self) -> str:
        gap = self._random.choice(("", " ", "\t"))
        return f"{gap}.{gap}".join(self.key() for _ in range(self._random.choice((1, 1, 2, 3))))

    def value(self, depth: int = 0) -> str:
        shape = self._random.random()
        if depth > 3 or shape < 0.6:
            return self._random.choice(_SCALARS)
        count = self._random.randrange(4)
        if shape < 0.8:
            gap = self._random.choice(("", " ", "\n  ", " # ] comment\n"))
            parts = (self.value(depth + 1) for _ in range(count))
            return (
                f"[{gap}{f'{gap},{gap}'.join(parts)}{self._random.choice(('', ','))}{gap}]"
                if (count)
                else f"[{gap}]"
            )
        pairs = (f"{self.dotted()} = {self.value(depth + 1)}" for _ in range(count))
        return "{" + ", ".join(pairs) + "}"

    def pairs(self) -> str:
        lines = []
        for _ in range(self._random.randrange(4)):
            comment = self._random.choice(("", ' # = ] "', "\t#é"))
            lines.append(f"{self.dotted()} ={self.value()}{comment}\n")
            lines.append(self._random.choice(("", "\n", "# c [x]\n")))
        return "".join(lines)

    def document(self) -> str:
        parts = [self.pairs()]
        arrays: list[str] = []
        for _ in range(self._random.randrange(6)):
            if arrays and self._random.random() < 0.5:
                name = self._random.choice(arrays)
                inner = self._random.choice((f"[[{name}]]", f"[{name}.{self.dotted()}]"))
                parts.append(f"{inner}\n")
            elif self._random.random() < 0.5:
                arrays.append(self.dotted())
                parts.append(f"[[ {arrays[-1]} ]] # x\n")
            else:
                parts.append(f"[{self.dotted()}]\n")
            parts.append(self.pairs())
        text = "".join(parts)
        return text.replace("\n", "\r\n") if self._random.random() < 0.2 else text


def _paths(value: Any, path: Path = ()) -> set[Path]:
    """Paths of all keys and elements below a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = set()
    for part, one in inner:
        found.add((*path, part))
        if isinstance(one, dict | list):
            found |= _paths(one, (*path, part))
    return found


def _at(text: str, line: int, column: int) -> str:
    return text.replace("\r\n", "\n").split("\n", line)[line - 1][column - 1 :]


def test_every_key_of_drawn_documents_is_found_where_it_stands() -> None:
    for seed in range(200):
        text = _Drawn(seed).document()
        tree = tomllib.loads(text)
        found = Positions.of(text)
        assert found.keys.keys() | found.values.keys() == _paths(tree), text
        assert not found.repeated and found.too_deep is None, text
        for path, position in found.keys.items():
            name = path[-1] if isinstance(path[-1], str) else path[-2]
            begin = _at(text, *position)
            for end in range(1, len(begin) + 1):
                try:
                    read = tomllib.loads(f"{begin[:end]} = 0")
                except tomllib.TOMLDecodeError:
                    continue
                if read == {name: 0}:
                    break
            else:
                pytest.fail(f"{path} is not at {position}: {begin!r} in\n{text}")
        lines = text.replace("\r\n", "\n")
        for path, (line, column) in found.values.items():
            value: Any = tree
            for part in path:
                value = value[part]
            if isinstance(value, bool) or (type(value) is int and value == 1):
                assert _at(lines, line, column).startswith(literal(value)), text


def test_positions_count_lines_and_characters_from_one() -> None:
    found = Positions.of('"é" = "ß"\n[a]\n"\\u0062" = [\n  1,\n  { c = 2 }]\n[[d]]\n[[d]]\ne=1')
    assert found.of_value(("a", "b", 0)) == (4, 3)
    assert found.of_key(("a", "b", 1, "c")) == (5, 5)
    assert found.of_value(("a", "b", 1, "c")) == (5, 9)
    assert found.of_key(("d", 1, "e")) == (8, 1) and found.of_key(("d", 0)) == (6, 3)
    assert found.of_key(("d", 1, "absent")) == (7, 3), "the closest table around it"
    assert found.of_key(("absent",)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "path", "first", "second"),
    [
        ("a = 1\n\na = 2", ("a",), 1, 3),
        ("[s]\nx.y = 1\nx.'y' = 2", ("s", "x", "y"), 2, 3),
        ("[a]\n[b]\n[a]", ("a",), 1, 3),
        ("a = {b = 1, b = 2}", ("a", "b"), 1, 1),
        ("[[m]]\nn = 1\n[[m]]\nn = 1\nn = 2", ("m", 1, "n"), 4, 5),
    ],
)
def test_what_is_set_twice(text: str, path: Path, first: int, second: int) -> None:
    [(found, before, after)] = Positions.of(text).repeated
    assert (found, before.line, after.line) == (path, first, second)
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)


@pytest.mark.parametrize(
    "inside", ["[" * 100_000, "{a=" * 100_000, "a." * 100_000, "x=" + "[" * 33]
)
def test_deep_nesting_ends_early(inside: str) -> None:
    found = Positions.of(f"v = 1\nw = {inside}" if inside[0] in "[{" else f"v = 1\n{inside}")
    assert found.too_deep is not None and found.too_deep.line == 2
    assert len(found.keys) <= MAX_DEPTH + 2


def test_invalid_documents_are_read_as_far_as_possible() -> None:
    for text in (
        "a = 1\nb = ",
        "a = 1\n[b",
        'a = 1\n"""',
        "a = 1\nb = [1,,",
        "a = 1\n= 2",
        "a=1\n\0",
    ):
        assert Positions.of(text).keys[("a",)] == (1, 1)


def test_paths_and_values_as_toml() -> None:
    assert path_text(("a", 0, "b c", "")) == 'a[0]."b c".""'
    assert literal({"a": [1, 2.5, True], "b c": 'x"\n\x00'}) == (
        '{ a = [1, 2.5, true], "b c" = "x\\"\\n\\U00000000" }'
    )
    for value in ("", "\x7f\u2028 \\", 1e300, 0.1, -5, [[], {}], {"": {"x": False}}):
        assert tomllib.loads(f"v = {literal(value)}") == {"v": value}
    assert literal(1 << 100_000) == "an integer of 100001 bits"
