"""Grammars of answers that call tools or have marked regions, in llguidance's Lark dialect.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md: special tokens as ``<[id]>``,
``%json`` for a schema, ``[lazy]`` for text that ends where its last part is first met.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.base.errors import TidemillError, unsupported
from tidemill.contract.program import Grammar
from tidemill.text.constraints import Region
from tidemill.text.parsers.format import Format, JsonCall, NamedJson
from tidemill.text.tools import Tool

_TEXT = "TEXT: /(.|\\n)*/"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How texts are written in a grammar.

    Attributes:
        special: spellings of the special tokens that may stand in marks -> their ids.
    """

    special: dict[str, int]

    def write(self, text: str) -> str:
        """A text as a sequence of strings and special tokens; empty for none."""
        marks = sorted(self.special, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]
        return " ".join(
            f"<[{self.special[p]}]>" if p in self.special else json.dumps(p, ensure_ascii=False)
            for p in parts
            if p
        )


def calls_grammar(
    form: Format,
    tools: Sequence[Tool],
    spelling: Spelling,
    *,
    by: str,
    required: bool,
    parallel: bool,
    document: Grammar | None = None,
) -> str:
    """The grammar of an answer in which tool calls obey their schemas.

    Args:
        form: how the model writes.
        tools: that may be called; schemas as the grammar takes them.
        spelling: of marks.
        by: the field that rules the calls, for errors.
        required: there must be a call, and there is nothing else.
        parallel: there may be several.
        document: what the answer is where it is no call; None: any text.

    Raises:
        TidemillError: kind UNSUPPORTED for a format whose calls this cannot write.
    """
    write = spelling.write
    listed = isinstance(form.syntax, JsonCall) and form.syntax.listed
    inner = 'call ("," " "? call)*' if listed and parallel else "call"
    opening, closing = ("[", "]") if listed else ("", "")
    rest = _join(write(form.padding + opening), inner, write(closing + form.padding + form.end))
    rules = [f"call_{i}: {_call(form, tool, spelling, by)}" for i, tool in enumerate(tools)]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    rules.append("unit: " + _join(write(form.begin), rest))
    between = form.between or ("\n" if form.begin and not form.section[0] else "")
    several = "unit" if listed or not parallel else f"unit ({_join(write(between), 'unit')})*"
    before, after = map(write, form.section)
    if required or document is not None:
        rules.append("calls: " + _join(before, several, after))
        if required:
            return _program("start: calls", rules)
        return _program("start: calls | document", [*rules, _document(document)])  # type: ignore[arg-type]
    mark = before or write(form.begin)
    if not mark or any(d in spelling.special for d in form.dropped):
        # Nothing tells where a call begins, or free text needs tokens that text cannot have.
        raise _cannot(form, by)
    opened = _join(several, after) if before else rest
    if mark.startswith("<["):
        rules.append(f"region: TEXT {mark} {opened}")
    else:
        rules += [f"region: head {opened}", f"head[lazy]: TEXT {mark}"]
    # A single call is the text's end: in what follows it another could be opened.
    start = "start: region* tail" if parallel else "start: region | tail"
    return _program(start, [*rules, "tail: TEXT", _TEXT])


def _program(start: str, rules: Sequence[str]) -> str:
    return "\n".join(["%llguidance {}", start, *rules])


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _call(form: Format, tool: Tool, spelling: Spelling, by: str) -> str:
    syntax, body = form.syntax, f"%json {tool.schema}"
    if isinstance(syntax, JsonCall):
        name = json.dumps(tool.name)
        head = f'{{"{syntax.name[0]}": {name}, "{syntax.arguments[0]}": '
        return _join(spelling.write(head), body, '"}"')
    if isinstance(syntax, NamedJson) and not syntax.id_mark:
        head = syntax.before + tool.name + syntax.after
        return _join(spelling.write(head), body, spelling.write(syntax.tail))
    raise _cannot(form, by)


def _cannot(form: Format, by: str) -> TidemillError:
    return unsupported(
        by,
        f"{by}: calls in the format {form.name} are read but cannot be enforced; leave {by} out "
        "and the model calls freely",
    )


def _document(document: Grammar) -> str:
    if document.kind == "json_schema":
        return f"document: %json {document.source}"
    if document.kind == "json_object":
        return 'document: %json {"type": "object"}'
    if document.kind == "choice":
        return "document: " + " | ".join(
            json.dumps(c, ensure_ascii=False) for c in json.loads(document.source)
        )
    # A slash or a line's end would end the expression here; what is escaped stays as it is.
    pattern = re.sub(r"(\\.)|/|\n", _escaped, document.source)
    return f"document: DOCUMENT\nDOCUMENT: /{pattern}/"


def _escaped(match: re.Match[str]) -> str:
    return match[1] or {"/": "\\/", "\n": "\\n"}[match[0]]


def regions_grammar(
    regions: Sequence[Region], triggers: Sequence[str], prepare: Callable[[str, str], str]
) -> str:
    """The grammar of text in which what a trigger opens is one of the regions.

    Args:
        regions: each begins with one of the triggers.
        triggers: texts.
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
