"""Lark grammars as regular expressions, where they are regular.

A grammar whose rules do not refer to themselves describes a regular language. As an expression it
can be enforced inside a JSON string (`pattern` of a schema); a grammar cannot, since its characters
would have to be escaped. https://lark-parser.readthedocs.io/en/stable/grammar.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_CHARS = 2**16
"""Of an expression: rules that are used often are written out each time."""

MAX_REPEATED = 1000

MAX_DEPTH = 100
"""Of groups and rules within each other."""

# `common` of Lark's own library.
_COMMON = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(?:\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[0-9a-fA-F]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[a-zA-Z]",
    "WORD": r"[a-zA-Z]+",
    "CNAME": r"[_a-zA-Z][_a-zA-Z0-9]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
}

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t]+|//[^\n]*)
  | (?P<line>\r?\n)
  | (?P<string>"(?:[^"\\\n]|\\.)*"i?)
  | (?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)
  | (?P<directive>%[a-z]+)
  | (?P<name>_?[a-z][_a-z0-9]*|_?[A-Z][_A-Z0-9]*)
  | (?P<number>-?[0-9]+)
  | (?P<sign>->|\.\.|[:|()\[\]?*+~!.,{}])
    """,
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "b": "\b", "0": "\0"}
_FLAGS = frozenset("ims")
_PLAIN = re.compile(r"[A-Za-z0-9 _,;:!@%<>='\"/`]")


class NotRegular(ValueError):
    """A grammar that is no regular expression, or no grammar; the message says why."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def regex_of(grammar: str) -> str:
    """The regular expression of a grammar's language, in the syntax of Rust's regex.

    Raises:
        NotRegular: a rule refers to itself, the expression is too long, or the grammar is wrong.
    """
    return _Grammar(list(_tokens(grammar))).expression()


def _tokens(grammar: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            raise NotRegular(f"line {line}: unexpected {grammar[at : at + 16]!r}")
        at, kind = match.end(), str(match.lastgroup)
        if kind != "space":
            yield _Token(kind, match[0], line)
        line += match[0].count("\n")
    yield _Token("line", "", line)


class _Grammar:
    """Definitions by name, each as the place of its tokens; expressions are made on demand."""

    def __init__(self, tokens: list[_Token]) -> None:
        # An alternative may begin on a line of its own.
        self._tokens: list[_Token] = []
        for token in tokens:
            if token.text == "|":
                while self._tokens and self._tokens[-1].kind == "line":
                    self._tokens.pop()
            self._tokens.append(token)
        self._at = 0
        self._places: dict[str, int] = {}
        self._known: dict[str, str] = {}
        self._open: list[str] = []
        self._depth = 0
        self._ignored: list[int] = []
        self._skip = ""
        self._statements()

    def expression(self) -> str:
        if "start" not in self._places:
            raise NotRegular("there is no rule start")
        if self._ignored:
            parts = [self._expansions_at(place) for place in self._ignored]
            self._skip = f"(?:{'|'.join(parts)})*"
        return self._skip + self._of("start")

    # -- statements ----------------------------------------------------------------------------

    def _statements(self) -> None:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind == "line":
                self._at += 1
            elif token.kind == "directive":
                self._directive(token)
            else:
                self._definition()

    def _directive(self, token: _Token) -> None:
        self._at += 1
        if token.text == "%ignore":
            self._ignored.append(self._at)
            self._skip_line()
        elif token.text == "%import":
            words = [t.text for t in self._skip_line()]
            if words[:2] != ["common", "."]:
                raise NotRegular(f"line {token.line}: only names of common can be imported")
            names = words[2:]
            alias = names[names.index("->") + 1] if "->" in names[:-1] else None
            for name in filter(str.isidentifier, names):
                if name == alias:
                    continue
                if name not in _COMMON:
                    raise NotRegular(f"line {token.line}: common has no {name}")
                self._known[alias or name] = f"(?:{_COMMON[name]})"
        else:
            raise NotRegular(f"line {token.line}: {token.text} is not supported")

    def _definition(self) -> None:
        while self._tokens[self._at].text in ("?", "!"):
            self._at += 1
        name = self._take("name")
        if self._tokens[self._at].text == ".":
            self._at += 1
            self._take("number")  # a priority says nothing about the language
        if self._tokens[self._at].text != ":":
            raise NotRegular(f"line {name.line}: expected ':' after {name.text}")
        self._at += 1
        if name.text in self._places or name.text in self._known:
            raise NotRegular(f"line {name.line}: {name.text} is defined twice")
        self._places[name.text] = self._at
        self._skip_line()

    def _skip_line(self) -> list[_Token]:
        begin = self._at
        while self._tokens[self._at].kind != "line":
            self._at += 1
        return self._tokens[begin : self._at]

    def _take(self, kind: str) -> _Token:
        token = self._tokens[self._at]
        if token.kind != kind:
            raise NotRegular(f"line {token.line}: expected a {kind}, got {token.text[:16]!r}")
        self._at += 1
        return token

    # -- expressions ---------------------------------------------------------------------------

    def _of(self, name: str) -> str:
        """The expression of a rule or terminal."""
        known = self._known.get(name)
        if known is not None:
            return known
        if name in self._open:
            raise NotRegular(f"the rule {name} refers to itself")
        if name not in self._places:
            raise NotRegular(f"{name} is not defined")
        self._open.append(name)
        skip = self._skip
        if name.lstrip("_").isupper():
            self._skip = ""  # nothing is ignored within a terminal
        found = self._expansions_at(self._places[name])
        self._skip = skip
        self._open.pop()
        found = f"(?:{found})" + (skip if name.lstrip("_").isupper() else "")
        self._known[name] = found
        return found

    def _expansions_at(self, place: int) -> str:
        back, self._at = self._at, place
        found = self._expansions()
        if self._tokens[self._at].kind != "line":
            token = self._tokens[self._at]
            raise NotRegular(f"line {token.line}: unexpected {token.text[:16]!r}")
        self._at = back
        return found

    def _expansions(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotRegular(f"groups and rules are nested more than {MAX_DEPTH} deep")
        alternatives = [self._expansion()]
        while self._tokens[self._at].text == "|":
            self._at += 1
            alternatives.append(self._expansion())
        self._depth -= 1
        return _bounded("|".join(alternatives))

    def _expansion(self) -> str:
        parts: list[str] = []
        while True:
            token = self._tokens[self._at]
            if token.kind == "line" or token.text in ("|", ")", "]"):
                return _bounded("".join(parts))
            if token.text == "->":
                self._at += 1
                self._take("name")
                continue
            parts.append(self._repeated(self._atom()))

    def _repeated(self, atom: str) -> str:
        token = self._tokens[self._at]
        if token.text in ("?", "*", "+"):
            self._at += 1
            return f"(?:{atom}){token.text}"
        if token.text != "~":
            return atom
        self._at += 1
        least = most = int(self._take("number").text)
        if self._tokens[self._at].text == "..":
            self._at += 1
            most = int(self._take("number").text)
        if not 0 <= least <= most <= MAX_REPEATED:
            raise NotRegular(f"line {token.line}: at most {MAX_REPEATED} repetitions are taken")
        return f"(?:{atom}){{{least},{most}}}"

    def _atom(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        if token.text in ("(", "["):
            inner = self._expansions()
            closing = self._tokens[self._at]
            if closing.text != {"(": ")", "[": "]"}[token.text]:
                raise NotRegular(f"line {token.line}: {token.text!r} is not closed")
            self._at += 1
            return f"(?:{inner})" + ("?" if token.text == "[" else "")
        if token.kind == "string":
            return self._string(token) + self._skip
        if token.kind == "regex":
            return _expression(token) + self._skip
        if token.kind == "name":
            return self._of(token.text)
        raise NotRegular(f"line {token.line}: unexpected {token.text[:16]!r}")

    def _string(self, token: _Token) -> str:
        text = _literal(token)
        if self._tokens[self._at].text == "..":
            self._at += 1
            last = _literal(self._take("string"))
            if len(text) != 1 or len(last) != 1 or text > last:
                raise NotRegular(f"line {token.line}: a range is between two characters")
            return f"[{_escaped(text)}-{_escaped(last)}]"
        escaped = "".join(map(_escaped, text))
        return f"(?i:{escaped})" if token.text.endswith("i") else escaped


def _bounded(expression: str) -> str:
    if len(expression) > MAX_CHARS:
        raise NotRegular(f"as an expression it has more than {MAX_CHARS} characters")
    return expression


def _literal(token: _Token) -> str:
    """The text of a string."""
    inside = token.text.removesuffix("i")[1:-1]

    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xu":
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", plain, inside)


def _escaped(char: str) -> str:
    if _PLAIN.fullmatch(char) or ord(char) > 127:
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 32 or char == "\x7f" else f"\\{char}"


def _expression(token: _Token) -> str:
    body, _, flags = token.text[1:].rpartition("/")
    if not _FLAGS.issuperset(flags):
        raise NotRegular(f"line {token.line}: of flags only i, m and s are taken")
    body = re.sub(r"\\(.)", lambda m: "/" if m[1] == "/" else m[0], body)
    return f"(?{flags}:{body})"
