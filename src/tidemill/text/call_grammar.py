"""Grammars of answers with tool calls or constrained regions, in llguidance's Lark dialect.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md: special tokens as ``<[id]>``,
``%json`` for a schema, ``[lazy]`` for the shortest match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.contract.program import Grammar
from tidemill.text.arguments import pattern, python_rules, tagged_rules
from tidemill.text.constraints import Region
from tidemill.text.parsers.format import Format, JsonCall, NamedJson, PythonCalls, TaggedCall
from tidemill.text.tools import Tool

_TEXT = "TEXT: /(.|\\n)*/"


@dataclass(frozen=True, slots=True)
class Spelling:
    """Converts texts to the grammar's notation.

    Attributes:
        special: texts of the special tokens that may occur in marks -> their ids.
    """

    special: dict[str, int]

    def write(self, text: str) -> str:
        """A text as a sequence of strings and special tokens; empty for an empty text."""
        marks = sorted(self.special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]
        return " ".join(
            f"<[{self.special[p]}]>" if p in self.special else json.dumps(p, ensure_ascii=False)
            for p in parts
            if p
        )

    def special_only(self, text: str) -> str:
        """`write` if the text contains a special token, else empty: `TEXT` covers plain text."""
        return self.write(text) if any(mark in text for mark in self.special) else ""


def calls_grammar(
    form: Format,
    tools: Sequence[Tool],
    spelling: Spelling,
    *,
    required: bool,
    parallel: bool,
    document: Grammar | None = None,
) -> str:
    """The grammar of an answer in which tool calls obey their schemas.

    Args:
        form: the model's format.
        tools: the tools that may be called; their schemas are prepared for the grammar.
        spelling: of marks.
        required: the answer must be a call and nothing else.
        parallel: several calls are allowed.
        document: the constraint on an answer that is not a call; None: any text.

    Raises:
        TidemillError: kind BAD_REQUEST naming the part of a tool that cannot be enforced in this
            format.
    """
    write = spelling.write
    listed = getattr(form.syntax, "listed", False) or getattr(form.syntax, "bracketed", False)
    inner = 'call ("," " "? call)*' if listed and parallel else "call"
    opening, closing = ("[", "]") if listed else ("", "")
    rest = _join(write(form.padding + opening), inner, write(closing + form.padding + form.end))
    rules = [rule for i, tool in enumerate(tools) for rule in _call(i, form, tool, spelling)]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    rules.append("unit: " + _join(write(form.begin), rest))
    between = write(form.between or form.spread)
    if not between and form.begin:
        between = '"\\n"?'  # the templates of a family differ
    several = "unit" if listed or not parallel else f"unit ({_join(between, 'unit')})*"
    before = write(form.section[0])
    # White space is a separate terminal: the lexer does not backtrack from a longer match.
    opened = _join(write(form.spread) if before else "", several)
    closed = _join(write(form.spread), write(form.section[1])) if before else ""
    rules.append("calls: " + _join(before, opened, closed))
    if required:
        return _program("start: calls", rules)
    if document is not None:
        answer = spelling.special_only(form.answer)
        return _program(
            f"start: calls | {_join(answer, 'document')}", [*rules, _document(document)]
        )
    if not before and not form.begin:
        return _program("start: calls | free", [*rules, *_first_character(form, spelling)])
    if form.leading:
        return _program("start: calls | free", [*rules, *_addressed(form, spelling)])
    mark = before or write(form.begin)
    rules += _regions(form, spelling, mark, _join(opened, closed) if before else rest)
    # Without parallel calls the text ends after a call; more text could open another one.
    return _program("start: region* tail" if parallel else "start: region | tail", rules)


def _regions(form: Format, spelling: Spelling, mark: str, opened: str) -> list[str]:
    """Text in which a mark opens calls."""
    if not mark.startswith("<["):
        return [f"region: head {opened}", f"head[lazy]: TEXT {mark}", "tail: TEXT", _TEXT]
    # Dropped marks may occur in the text too.
    dropped = [spelled for d in form.dropped if (spelled := spelling.special_only(d))]
    if not dropped:
        return [f"region: TEXT {mark} {opened}", "tail: TEXT", _TEXT]
    words = " | ".join(["WORDS", *dropped])
    return [f"region: tail {mark} {opened}", f"tail: ({words})*", _TEXT.replace("TEXT", "WORDS")]


def _addressed(form: Format, spelling: Spelling) -> list[str]:
    """Text of a plain message: it begins with the answer mark, or not like a call."""
    if form.answer:
        return [f"free: {spelling.write(form.answer)} TEXT", _TEXT]
    return ["free: FREE", rf"FREE: /(.|\n)*/ & ~/\s*{pattern(form.begin)}(.|\n)*/"]


def _first_character(form: Format, spelling: Spelling) -> list[str]:
    """Plain text for formats without a begin mark: its first character must not begin a call."""
    dropped = [spelled for d in form.dropped if (spelled := spelling.special_only(d))]
    lead = f"({' | '.join(dropped)})? " if dropped else ""
    space = r"\s\x1c-\x1f"  # includes what Python's str.isspace accepts
    return [f"free: {lead}FREE", f"FREE: /[{space}]*([^{space}{{\\[](.|\\n)*)?/"]


def _program(start: str, rules: Sequence[str]) -> str:
    return "\n".join(["%llguidance {}", start, *rules])


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _call(number: int, form: Format, tool: Tool, spelling: Spelling) -> list[str]:
    """The rules of one tool's call; the first is the call's."""
    syntax, body, rule = form.syntax, f"%json {tool.schema}", f"call_{number}"
    if isinstance(syntax, TaggedCall):
        return tagged_rules(rule, tool, syntax, spelling.write, spelling.special)
    if isinstance(syntax, PythonCalls):
        return python_rules(rule, tool, spelling.write)
    if isinstance(syntax, JsonCall):
        name = json.dumps(tool.name)
        head = f'{{"{syntax.name[0]}": {name}, "{syntax.arguments[0]}": '
        if syntax.keyed:
            head = f"{{{name}: "
        if syntax.inside:
            head = f'{{"type": "function", "{syntax.inside}": {head}'
        closing = '"}}"' if syntax.inside else '"}"'
        return [f"{rule}: " + _join(spelling.write(head), body, closing)]
    assert isinstance(syntax, NamedJson), "a format without calls takes no tools"
    if syntax.quote:
        from tidemill.text.unquoted_arguments import unquoted_rules  # one family needs it

        return unquoted_rules(rule, tool, syntax, spelling.write)
    identity = "/[A-Za-z0-9_-]{8,40}/" if syntax.id_first else ""
    head = _join(identity, spelling.write(syntax.before + tool.name))
    number_ = f"{spelling.write(syntax.id_marks[0])} /[0-9]{{1,3}}/" if syntax.numbered else ""
    after = spelling.write(syntax.infix + syntax.after)
    return [f"{rule}: " + _join(head, number_, after, body, spelling.write(syntax.tail))]


def _document(document: Grammar) -> str:
    if document.kind == "json_schema":
        return f"document: %json {document.source}"
    if document.kind == "json_object":
        return 'document: %json {"type": "object"}'
    if document.kind == "choice":
        return "document: " + " | ".join(
            json.dumps(c, ensure_ascii=False) for c in json.loads(document.source)
        )
    # A slash or a newline would end the expression; existing escapes are kept.
    pattern = re.sub(r"(\\.)|/|\n", _escaped, document.source)
    return f"document: DOCUMENT\nDOCUMENT: /{pattern}/"


def _escaped(match: re.Match[str]) -> str:
    return match[1] or {"/": "\\/", "\n": "\\n"}[match[0]]


def regions_grammar(
    regions: Sequence[Region], triggers: Sequence[str], prepare: Callable[[str, str], str]
) -> str:
    """The grammar of free text in which each trigger opens one of its regions.

    Args:
        regions: each begins with one of the triggers.
        triggers: texts that open a region.
        prepare: see `ChatSide`.
    """
    write = Spelling({}).write
    bodies: dict[str, list[str]] = {}
    for region in regions:
        trigger = next(t for t in triggers if region.begin.startswith(t))
        schema = f"%json {prepare(region.schema, region.param)}"
        body = _join(write(region.begin.removeprefix(trigger)), schema, write(region.end))
        bodies.setdefault(trigger, []).append(body)
    rules = []
    for number, (trigger, alternatives) in enumerate(bodies.items()):
        rules.append(f"head_{number}[lazy]: TEXT {write(trigger)}")
        rules.append(f"region_{number}: head_{number} ({' | '.join(alternatives)})")
    opened = " | ".join(f"region_{number}" for number in range(len(bodies)))
    return _program(f"start: ({opened})* tail", ["tail: TEXT", _TEXT, *rules])
