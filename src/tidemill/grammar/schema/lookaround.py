"""Rewrites patterns with look-around to equivalent patterns without; their language is regular.

``^(?=A)(?!B)C$`` matches what ``^A`` and ``^C$`` match and ``^B`` does not. The library intersects
several patterns itself; the complement is computed as an automaton. Look-ahead within an expression
constrains all text after it, so the whole expression is converted by an automaton. Look-behind is
supported only at the end of the text.

Where ECMA-262, Python and Rust differ (``.``, ``\\s``, ``$`` before a final newline), only text
that all of them match is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from tidemill.grammar.schema import automaton
from tidemill.grammar.schema.automaton import ALL, ANY, EMPTY, NONE, Budget, Ranges, Term
from tidemill.grammar.schema.regex import Node, Unreadable, read

MAX_PATTERN = 2_000
"""Maximum characters of a pattern with look-around."""

MAX_UNROLLED = 4

_LOOK = re.compile(r"\(\?<?[=!]")

# Each class as all dialects define it (intersection), and as any of them does (union).
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACES: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
_ANY_SPACES: Ranges = tuple(sorted((*_SPACES, (28, 31), (0x85, 0x85), (0xFEFF, 0xFEFF))))
_LINE: Ranges = ((0, 9), (11, 12), (14, 0x2027), (0x202A, 0x10FFFF))
_ANY_LINE: Ranges = ((0, 9), (11, 0x10FFFF))
_CLASSES: dict[str, tuple[Ranges, Ranges]] = {
    "d": (_DIGITS, _DIGITS),
    "w": (_WORD, _WORD),
    "s": (_SPACES, _ANY_SPACES),
    ".": (_LINE, _ANY_LINE),
}
_LINE_END: Ranges = ((10, 10),)


class Unsupported(ValueError):
    """The pattern cannot be rewritten without look-around."""


def is_needed(pattern: str) -> bool:
    """The pattern has look-around."""
    return _LOOK.search(pattern) is not None


def without(pattern: str, budget: Budget) -> list[str]:
    """Patterns without look-around whose conjunction is equivalent to the pattern.

    Args:
        pattern: with look-around.
        budget: limits the work.

    Raises:
        Unsupported: with the reason.
    """
    if len(pattern) > MAX_PATTERN:
        raise Unsupported(f"patterns with look-around have at most {MAX_PATTERN} characters")
    try:
        node, outermost = read(pattern)
        parts = None if node[0] == "alt" else _split(pattern, outermost, budget)
        return [_converted(_searched(node), budget)] if parts is None else parts
    except (Unreadable, automaton.TooLarge, RecursionError) as error:
        raise Unsupported(f"this look-around is not supported: {error}") from None


def _split(
    pattern: str, outermost: list[tuple[Node, int, int]], budget: Budget
) -> list[str] | None:
    """The parts of a pattern whose look-around is at an anchored end, or None."""
    first, last = 0, len(outermost)
    while first < last and _is_first(outermost[first][0]):
        first += 1
    while last > first and _is_last(outermost[last - 1][0]):
        last -= 1
    ahead = [part for part in outermost[:first] if part[0][0] == "look"]
    behind = [part for part in outermost[last:] if part[0][0] == "look"]
    begins = len(ahead) < first
    ends = len(behind) < len(outermost) - last
    if (ahead and not begins) or (behind and not ends):
        return None
    middle: Node = ("cat", tuple(node for node, _, _ in outermost[first:last]))
    if _asserts(middle):
        core = _converted(
            _searched(("cat", (*_if(begins, "begin"), middle, *_if(ends, "end")))), budget
        )
    else:
        begin = outermost[first][1] if first < len(outermost) else len(pattern)
        text = pattern[begin : outermost[last - 1][2]] if last > first else ""
        core = f"{'^' * begins}{text}{'$' * ends}"
    found = [core]
    for (_, is_ahead, negated, inner), begin, end in ahead + behind:
        around: Node = ("cat", (("begin",), inner) if is_ahead else (inner, ("end",)))
        if negated:
            found.append(_converted(partial(_negated, around), budget))
        elif _asserts(_unanchored(inner)):
            found.append(_converted(_searched(around), budget))
        else:
            text = pattern[begin + (3 if is_ahead else 4) : end - 1]
            found.append(f"^(?:{text})" if is_ahead else f"(?:{text})$")
    return found


def _is_first(node: Node) -> bool:
    return node[0] == "begin" or (node[0] == "look" and bool(node[1]))


def _is_last(node: Node) -> bool:
    return node[0] == "end" or (node[0] == "look" and not node[1])


def _if(there: bool, kind: str) -> tuple[Node, ...]:
    return ((kind,),) if there else ()


def _asserts(node: Node) -> bool:
    """The node or a descendant is look-around or an anchor."""
    kind = node[0]
    if kind in ("cat", "alt"):
        return any(map(_asserts, node[1]))
    if kind == "rep":
        return _asserts(node[1])
    return kind in ("look", "begin", "end")


def _unanchored(node: Node) -> Node:
    """A concatenation without the anchors at its ends, which every dialect supports there."""
    if node[0] != "cat":
        return node
    parts = list(node[1])
    if parts and parts[0][0] == "begin":
        del parts[0]
    if parts and parts[-1][0] == "end":
        del parts[-1]
    return ("cat", tuple(parts))


class _Context:
    """Converts sets to class ids. The first pass collects the sets, the second uses the classes."""

    def __init__(self) -> None:
        self.sets: list[Ranges] = [_LINE_END]
        self.classes: list[Ranges] | None = None

    def chars(self, ranges: Ranges) -> Term:
        if self.classes is None:
            self.sets.append(ranges)
            return ("set", frozenset((hash(ranges),)))
        return automaton.chars(
            frozenset(
                number
                for number, known in enumerate(self.classes)
                if any(low <= known[0][0] <= high for low, high in ranges)
            )
        )


Build = Callable[[_Context], Term]


def _converted(build: Build, budget: Budget) -> str:
    context = _Context()
    build(context)
    context.classes = automaton.classes_of(context.sets)
    return f"^(?:{automaton.plain(build(context), context.classes, budget)})$"


def _searched(node: Node, *, narrow: bool = True) -> Build:
    def build(context: _Context) -> Term:
        rest = _Rest(lambda start: ANY)
        here = _followed(node, rest, narrow, context, True)
        later = _followed(node, rest, narrow, context, False)
        return automaton.alt(here, automaton.cat(("all",), automaton.cat(ANY, later)))

    return build


def _negated(node: Node, context: _Context) -> Term:
    return automaton.complement(_searched(node, narrow=False)(context))


class _Rest:
    """The rest of a match after a position, memoized by whether that is the text's beginning."""

    def __init__(self, make: Callable[[bool], Term]) -> None:
        self._make = make
        self._known: dict[bool, Term] = {}

    def __call__(self, start: bool) -> Term:
        if start not in self._known:
            self._known[start] = self._make(start)
        return self._known[start]


def _followed(node: Node, rest: _Rest, narrow: bool, context: _Context, start: bool) -> Term:
    """The texts, from a position on, that match the node followed by `rest`."""
    kind = node[0]
    if kind == "begin":
        return rest(start) if start else NONE
    if kind == "end":
        if narrow:
            return automaton.both(EMPTY, rest(start))
        last = automaton.alt(EMPTY, context.chars(_LINE_END))
        return automaton.both(last, rest(start))
    if kind == "look":
        if not node[1]:
            raise Unreadable("look-behind is supported only at the end of the pattern")
        nothing = _Rest(lambda _: ANY)
        ahead = _followed(node[3], nothing, narrow != node[2], context, start)
        if node[2]:
            ahead = automaton.complement(ahead)
        return automaton.both(ahead, rest(start))
    if not _asserts(node):
        return _then(_plain(node, narrow, context), rest, start)
    if kind == "alt":
        return automaton.alt(*(_followed(n, rest, narrow, context, start) for n in node[1]))
    if kind == "cat":
        for inner in reversed(node[1][1:]):
            rest = _Rest(partial(_followed, inner, rest, narrow, context))
        return _followed(node[1][0], rest, narrow, context, start)
    _, inner, least, most = node
    if most is None or most > MAX_UNROLLED:
        raise Unreadable("look-around or an anchor is repeated")
    for number in range(most):
        required = number >= most - least
        rest = _Rest(partial(_once, inner, rest, required, narrow, context))
    return rest(start)


def _once(
    inner: Node, rest: _Rest, required: bool, narrow: bool, context: _Context, start: bool
) -> Term:
    taken = _followed(inner, rest, narrow, context, start)
    return taken if required else automaton.alt(taken, rest(start))


def _then(term: Term, rest: _Rest, start: bool) -> Term:
    later = rest(False)
    if not start or not automaton.nullable(term) or rest(True) == later:
        return automaton.cat(term, later)
    some = automaton.both(term, automaton.cat(("all",), ANY))
    return automaton.alt(rest(True), automaton.cat(some, later))


def _plain(node: Node, narrow: bool, context: _Context) -> Term:
    kind = node[0]
    if kind == "cat":
        term = EMPTY
        for inner in reversed(node[1]):
            term = automaton.cat(_plain(inner, narrow, context), term)
        return term
    if kind == "alt":
        return automaton.alt(*(_plain(inner, narrow, context) for inner in node[1]))
    if kind == "rep":
        return automaton.repeat(_plain(node[1], narrow, context), node[2], node[3])
    return context.chars(_ranges(node, narrow))


def _ranges(node: Node, narrow: bool) -> Ranges:
    kind = node[0]
    if kind == "set":
        return tuple(node[1])
    if kind == "class":
        _, letter, negated = node
        found = _CLASSES[letter][narrow == negated]
        return _others(found) if negated else found
    if kind == "members":
        _, parts, negated = node
        union = [r for part in parts for r in _ranges(part, narrow != negated)]
        return _others(tuple(sorted(union))) if negated else tuple(sorted(union))
    raise Unreadable("it contains a word boundary or a Unicode class")


def _others(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for low, high in ranges:
        if low > at:
            found.append((at, low - 1))
        at = max(at, high + 1)
    if at <= ALL[-1][1]:
        found.append((at, ALL[-1][1]))
    return tuple(found)
