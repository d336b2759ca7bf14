"""Converts extended regular expressions (with intersection and complement) to plain ones.

Derivatives of terms by characters (J. Brzozowski, Derivatives of Regular Expressions, 1964) yield a
deterministic automaton. It is minimized, and its states are eliminated one by one. Characters are
represented by ids of equivalence classes: no set of the expression splits a class. Sizes are
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

Term = tuple[Any, ...]
Ranges = tuple[tuple[int, int], ...]

NONE: Term = ("none",)
EMPTY: Term = ("empty",)

MAX_STATES = 256
MAX_DERIVED = 20_000
MAX_LENGTH = 12_000
"""Limits: states of the automaton, derivatives of terms, characters of the result."""

ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


class TooLarge(ValueError):
    """The automaton or its expression exceeds a limit."""


def chars(ids: frozenset[int]) -> Term:
    """One character of the given classes."""
    return ("set", ids) if ids else NONE


def cat(a: Term, b: Term) -> Term:
    """Concatenation."""
    if NONE in (a, b):
        return NONE
    if a == EMPTY:
        return b
    if b == EMPTY:
        return a
    if a[0] == "cat":
        return ("cat", a[1], cat(a[2], b))
    return ("cat", a, b)


def alt(*parts: Term) -> Term:
    """Union."""
    found: set[Term] = set()
    for part in parts:
        found |= part[1] if part[0] == "alt" else {part}
    found.discard(NONE)
    if ANY in found:
        return ANY
    if len(found) == 1:
        return found.pop()
    return ("alt", frozenset(found)) if found else NONE


def both(*parts: Term) -> Term:
    """Intersection."""
    found: set[Term] = set()
    for part in parts:
        found |= part[1] if part[0] == "and" else {part}
    found.discard(ANY)
    if NONE in found:
        return NONE
    if len(found) == 1:
        return found.pop()
    return ("and", frozenset(found)) if found else ANY


def complement(a: Term) -> Term:
    """Complement."""
    if a == NONE:
        return ANY
    if a == ANY:
        return NONE
    return a[1] if a[0] == "not" else ("not", a)


def repeat(a: Term, least: int, most: int | None) -> Term:
    """`a` repeated `least` to `most` times (None: no limit)."""
    if a in (NONE, EMPTY):
        return EMPTY if a == EMPTY or not least else NONE
    if most == 0:
        return EMPTY
    if most == 1 and least == 1:
        return a
    return ("rep", a, 0 if nullable(a) else least, most)


ANY: Term = ("rep", ("all",), 0, None)


def nullable(a: Term) -> bool:
    """The language contains the empty text."""
    kind = a[0]
    if kind == "cat":
        return nullable(a[1]) and nullable(a[2])
    if kind == "alt":
        return any(map(nullable, a[1]))
    if kind == "and":
        return all(map(nullable, a[1]))
    if kind == "not":
        return not nullable(a[1])
    return kind == "empty" or (kind == "rep" and not a[2])


class Budget:
    """The remaining number of derivatives, for one expression or for several together."""

    def __init__(self, left: int = MAX_DERIVED) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        """Deduct `count`.

        Raises:
            TooLarge: the budget is exhausted.
        """
        self.left -= count
        if self.left < 0:
            raise TooLarge("it takes too many steps")


class _Deriver:
    def __init__(self, budget: Budget) -> None:
        self._known: dict[tuple[Term, int], Term] = {}
        self._budget = budget

    def __call__(self, a: Term, char: int) -> Term:
        """The derivative of `a` by `char`: what may follow `char` in texts of `a`."""
        key = (a, char)
        found = self._known.get(key)
        if found is None:
            self._budget.spend(len(a[1]) if a[0] in ("alt", "and") else 1)
            found = self._known[key] = self._derive(a, char)
        return found

    def _derive(self, a: Term, char: int) -> Term:
        kind = a[0]
        if kind == "set":
            return EMPTY if char in a[1] else NONE
        if kind == "all":
            return EMPTY
        if kind == "cat":
            first = cat(self(a[1], char), a[2])
            return alt(first, self(a[2], char)) if nullable(a[1]) else first
        if kind == "alt":
            return alt(*(self(part, char) for part in a[1]))
        if kind == "and":
            return both(*(self(part, char) for part in a[1]))
        if kind == "not":
            return complement(self(a[1], char))
        if kind == "rep":
            _, inner, least, most = a
            rest = repeat(inner, max(least - 1, 0), None if most is None else most - 1)
            return cat(self(inner, char), rest)
        return NONE


def classes_of(sets: Sequence[Ranges]) -> list[Ranges]:
    """The coarsest partition of the characters in which each set is a union of classes."""
    edges = {low for low, _ in ALL} | {high + 1 for _, high in ALL}
    for ranges in sets:
        edges |= {low for low, _ in ranges} | {high + 1 for _, high in ranges}
    found: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, after in pairwise(sorted(edges)):
        if not any(a <= low <= b for a, b in ALL):
            continue
        signature = tuple(any(a <= low <= b for a, b in ranges) for ranges in sets)
        found.setdefault(signature, []).append((low, after - 1))
    return [tuple(ranges) for ranges in found.values()]


def plain(term: Term, classes: Sequence[Ranges], budget: Budget) -> str:
    """A plain expression, without anchors, of the same language.

    Args:
        classes: the ranges of each class id of the term.
        budget: limits the work.

    Raises:
        TooLarge: see the class.
    """
    steps, accepting = _minimal(*_automaton(term, len(classes), budget))
    return _eliminated(steps, accepting, lambda ids: _spelled(ids, classes), budget)


def _automaton(term: Term, count: int, budget: Budget) -> tuple[list[list[int]], list[bool]]:
    derive = _Deriver(budget)
    numbers = {term: 0}
    steps: list[list[int]] = []
    order = [term]
    for state in order:
        row = []
        for char in range(count):
            following = derive(state, char)
            if following not in numbers:
                if len(order) >= MAX_STATES:
                    raise TooLarge(f"its automaton has more than {MAX_STATES} states")
                numbers[following] = len(order)
                order.append(following)
            row.append(numbers[following])
        steps.append(row)
    return steps, [nullable(state) for state in order]


def _minimal(steps: list[list[int]], accepting: list[bool]) -> tuple[list[list[int]], list[bool]]:
    """Merge equivalent states (E. F. Moore, 1956)."""
    block = [int(a) for a in accepting]
    while True:
        numbers: dict[tuple[int, ...], int] = {}
        finer = [
            numbers.setdefault((block[state], *(block[to] for to in row)), len(numbers))
            for state, row in enumerate(steps)
        ]
        if len(numbers) == len(set(block)):
            break
        block = finer
    # The initial state is in block 0, because numbers are assigned in order.
    first = [finer.index(number) for number in range(len(numbers))]
    return [[finer[to] for to in steps[state]] for state in first], [accepting[s] for s in first]


def _eliminated(
    steps: list[list[int]],
    accepting: list[bool],
    spell: Callable[[frozenset[int]], str],
    budget: Budget,
) -> str:
    end, begin = len(steps), -1
    edges: dict[int, dict[int, str]] = {state: {} for state in (*range(len(steps)), end, begin)}
    for state, row in enumerate(steps):
        ids: dict[int, set[int]] = {}
        for char, to in enumerate(row):
            ids.setdefault(to, set()).add(char)
        edges[state] = {to: spell(frozenset(found)) for to, found in ids.items()}
        if accepting[state]:
            edges[state][end] = ""
    edges[begin] = {0: ""}
    left = set(range(len(steps)))
    while left:
        into = {s: [f for f, out in edges.items() if s in out and f != s] for s in left}
        state = min(left, key=lambda s: (len(into[s]) * (len(edges[s]) - (s in edges[s])), s))
        left.discard(state)
        out = edges.pop(state)
        loop = out.pop(state, None)
        again = "" if loop is None else f"{_grouped(loop)}*"
        for origin in into[state]:
            before = edges[origin].pop(state)
            for to, after in out.items():
                made = _joined(before, again, after)
                budget.spend(1 + len(made) // 64)
                known = edges[origin].get(to)
                edges[origin][to] = made if known is None else _either(known, made)
                if len(edges[origin][to]) > MAX_LENGTH:
                    raise TooLarge(f"its plain form has more than {MAX_LENGTH} characters")
    return edges[begin].get(end, _NOTHING)


_NOTHING = "[^\\x{0}-\\x{10FFFF}]"


def _joined(*parts: str) -> str:
    return "".join(f"(?:{part})" if _open(part) else part for part in parts)


def _either(a: str, b: str) -> str:
    if "" in (a, b):
        return f"{_grouped(a or b)}?" if a or b else ""
    return f"{a}|{b}"


def _grouped(text: str) -> str:
    """Group an expression, if necessary, so that a quantifier can follow it."""
    whole = text.startswith("[") and text.find("]") == len(text) - 1
    return text if whole or text == _ANY_CHAR else f"(?:{text})"


def _open(text: str) -> bool:
    """The expression is an alternation at its top level; sets contain no `(`, `)` or `|`."""
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "|" and not depth:
            return True
    return False


_ANY_CHAR = "(?s:.)"


def _spelled(ids: frozenset[int], classes: Sequence[Ranges]) -> str:
    if len(ids) == len(classes):
        return _ANY_CHAR
    ranges = sorted(r for i in ids for r in classes[i])
    merged = [ranges[0]]
    for low, high in ranges[1:]:
        if low == merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    parts = (_char(low) + (f"-{_char(high)}" if high > low else "") for low, high in merged)
    return f"[{''.join(parts)}]"


def _char(code: int) -> str:
    return chr(code) if code < 128 and chr(code).isalnum() else f"\\x{{{code:X}}}"
