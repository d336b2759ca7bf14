"""Parses the common subset of ECMA-262's, Python's and Rust's regular expressions into a tree.

A node is a tuple whose first member is its kind:

- ``("set", ranges)``: one character of some ranges of code points;
- ``("class", letter, negated)``: ``.``, ``\\d``, ``\\w``, ``\\s``, which differ between dialects;
- ``("cat", nodes)``, ``("alt", nodes)``, ``("rep", node, least, most)``; `most` None is no limit;
- ``("look", ahead, negated, node)``: look-around; ``("begin",)``, ``("end",)``: anchors;
- ``("members", parts, negated)``: a class in brackets;
- ``("opaque",)``: an atom that is not parsed further (``\\b``, ``\\p{L}``).
"""

from __future__ import annotations

import re
from typing import Any

Node = tuple[Any, ...]

_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_QUANTIFIER = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_LOOK = re.compile(r"\?(<?)([=!])")
_NAME = re.compile(r"\?P?<[A-Za-z_]\w*>")
MAX_NESTED = 40


class Unreadable(ValueError):
    """The expression uses syntax that the dialects do not share."""


def read(pattern: str) -> tuple[Node, list[tuple[Node, int, int]]]:
    """Parse an expression; return its tree and its top-level concatenation's members with spans.

    The second is empty if the top level is an alternation.

    Raises:
        Unreadable: see the class.
    """
    reader = _Reader(pattern)
    node = reader.alternatives(0)
    if reader.at < len(pattern):
        raise Unreadable("a closing parenthesis without an opening one")
    return node, reader.outermost


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.outermost: list[tuple[Node, int, int]] = []

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def alternatives(self, depth: int) -> Node:
        if depth > MAX_NESTED:
            raise Unreadable(f"groups are nested deeper than {MAX_NESTED} levels")
        branches = [self._branch(depth)]
        while self._take("|"):
            branches.append(self._branch(depth))
        if len(branches) == 1:
            return branches[0]
        if not depth:
            self.outermost = []
        return ("alt", tuple(branches))

    def _branch(self, depth: int) -> Node:
        found: list[tuple[Node, int, int]] = []
        while self.at < len(self.text) and self._peek() not in "|)":
            begin = self.at
            node = self._quantified(self._atom(depth))
            found.append((node, begin, self.at))
        if not depth:
            self.outermost = found
        return ("cat", tuple(node for node, _, _ in found))

    def _quantified(self, node: Node) -> Node:
        char = self._peek()
        if char in ("*", "+", "?"):
            self.at += 1
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        elif found := _QUANTIFIER.match(self.text, self.at):
            self.at = found.end()
            least = int(found[1])
            most = least if not found[2] else int(found[3]) if found[3] else None
            bounds = (least, most)
        else:
            return node
        if node[0] in ("look", "begin", "end"):
            raise Unreadable("an assertion is repeated")
        self._take("?")  # lazy: the same language
        if self._peek() in ("*", "+"):
            raise Unreadable("a possessive quantifier")
        return ("rep", node, *bounds)

    def _atom(self, depth: int) -> Node:
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._members()
        if char == "\\":
            return self._escape()
        if char == ".":
            return ("class", ".", False)
        if char == "^":
            return ("begin",)
        if char == "$":
            return ("end",)
        if char in "*+?":
            raise Unreadable("a quantifier has nothing to repeat")
        return ("set", ((ord(char), ord(char)),))

    def _group(self, depth: int) -> Node:
        look = _LOOK.match(self.text, self.at)
        if look is not None:
            self.at = look.end()
        elif not self._take("?:"):
            if name := _NAME.match(self.text, self.at):
                self.at = name.end()
            elif self._peek() == "?":
                raise Unreadable("a group with options")
        node = self.alternatives(depth + 1)
        if not self._take(")"):
            raise Unreadable("a parenthesis is not closed")
        return node if look is None else ("look", not look[1], look[2] == "!", node)

    def _escape(self) -> Node:
        if self.at >= len(self.text):
            raise Unreadable("a backslash ends the expression")
        char = self.text[self.at]
        self.at += 1
        if char in "dws":
            return ("class", char, False)
        if char in "DWS":
            return ("class", char.lower(), True)
        if char in "pPbB":
            if char in "pP" and self._take("{"):
                self.at = self.text.find("}", self.at) + 1 or len(self.text)
            return ("opaque",)
        if char in "123456789kAzZGcuxUQE" and (char not in "ux" or not self._code(char)):
            raise Unreadable(f"the escape \\{char}")
        code = self._last if char in "ux" else _ESCAPES.get(char, ord(char))
        return ("set", ((code, code),))

    def _code(self, char: str) -> bool:
        """Parse the code point of ``\\x`` or ``\\u`` into `_last`; False if it is invalid."""
        length = 2 if char == "x" else 4
        found = re.compile(rf"\{{([0-9a-fA-F]{{1,6}})\}}|([0-9a-fA-F]{{{length}}})").match(
            self.text, self.at
        )
        if found is None:
            return False
        self.at = found.end()
        self._last = int(found[1] or found[2], 16)
        return not 0xD800 <= self._last <= 0xDFFF and self._last <= 0x10FFFF

    def _members(self) -> Node:
        negated = self._take("^")
        parts: list[Node] = []
        first = True
        while first or self._peek() != "]":
            first = False
            if self.at >= len(self.text) or self._peek() == "]":
                raise Unreadable("a class is empty or not closed")
            low = self._member()
            dash = self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", "")
            if not dash:
                parts.append(low)
                continue
            self.at += 1
            high = self._member()
            if low[0] != "set" or high[0] != "set" or low[1][0][0] > high[1][0][0]:
                raise Unreadable("a range of a class is out of order")
            parts.append(("set", ((low[1][0][0], high[1][0][0]),)))
        self.at += 1
        return ("members", tuple(parts), negated)

    def _member(self) -> Node:
        if self._take("\\"):
            if self._take("b"):
                return ("set", ((8, 8),))
            return self._escape()
        char = self.text[self.at]
        self.at += 1
        return ("set", ((ord(char), ord(char)),))
