"""Derives the marks of calls whose arguments are one object, and of Python calls.

Each function matches one layout against a turn with known calls, and returns None if the turn does
not have that layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.text.derived.layout import Around, around, spread_of, trimmed
from tidemill.text.derived.probe_calls import NAMES, Call
from tidemill.text.derived.turns import ID, Turns, atoms
from tidemill.text.parsers.format import CallSyntax, Format, JsonCall, NamedJson, PythonCalls

ARGUMENTS: dict[str, Any] = {"qq_text": "Qqvaluea", "qq_count": 70417}
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Span:
    """A call's span in a text, and the value parsed from it."""

    start: int
    end: int
    value: Any = None


def _bodies(turns: Turns, lead: int, tail: int) -> tuple[str, str | None] | None:
    """The model's text for one call, and for two calls if a turn can hold them."""
    calls = [Call(name, ARGUMENTS) for name in NAMES]
    one, two = turns.turn(calls[:1], ids=False), turns.turn(calls, ids=False)
    if one is None:
        return None
    if two is not None and NAMES[1] not in two[lead:]:
        two = None
    return one[lead : len(one) - tail], None if two is None else two[lead : len(two) - tail]


def _around(one: str, first: _Span, two: str | None, spans: Sequence[_Span]) -> Around:
    before, after = one[: first.start], one[first.end :]
    if two is None or len(spans) != 2:
        return around(before, None, after)
    return around(before, two[spans[0].end : spans[1].start], two[spans[1].end :])


def _format(found: Around, syntax: CallSyntax, *, listed: bool = False) -> Format:
    """A format with these marks around each call.

    Args:
        found: the marks.
        syntax: of a call.
        listed: the calls form a bracketed list, and the marks enclose the brackets.
    """
    if listed:
        begin, end = found.opening or found.begin, found.closing or found.end
        begin, end = begin.rstrip().removesuffix("["), end.lstrip().removeprefix("]")
        end, more = trimmed(begin, end)
        dropped = (more,) if more else ()
        return Format("derived", begin=begin.strip(), end=end, syntax=syntax, dropped=dropped)
    begin, end = found.begin, found.end
    space = begin[len(begin.rstrip()) :]
    padding = space if space and end.startswith(space) else ""
    closing, more = trimmed(found.opening, found.closing)
    if not found.opening and not found.between:  # at most one call per turn
        end, more = trimmed(begin, end)
    opening, between = found.opening.strip(), found.between
    spread = spread_of(found)
    if isinstance(syntax, NamedJson):  # the space before a name need not occur after it
        syntax, padding = replace(syntax, before=space + syntax.before), ""
    return Format(
        "derived",
        begin=begin.strip(),
        end=end.strip(),
        section=(opening, closing),
        dropped=(more,) if more else (),
        between=between if not begin.strip() else "",
        padding=padding,
        spread=spread,
        syntax=syntax,
    )


def _object_at(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _json_span(text: str, name: str, after: int = 0) -> _Span | None:
    """The outermost JSON object after offset `after` that names a function."""
    limit = text.find(name, after)
    at = text.find("{", after)
    while 0 <= at < limit:
        found = _object_at(text, at)
        if found is not None and found[1] > limit and isinstance(found[0], dict):
            return _Span(at, found[1], found[0])
        at = text.find("{", at + 1)
    return None


def _is_arguments(value: Any) -> bool:
    if isinstance(value, str):
        found = _object_at(value, 0) if value[:1] == "{" else None
        value = found[0] if found is not None else None
    return bool(value == ARGUMENTS)


def _json_syntax(value: Mapping[str, Any], *, listed: bool) -> JsonCall | None:
    name = next((k for k, v in value.items() if v == NAMES[0]), None)
    key = next((k for k, v in value.items() if _is_arguments(v)), None)
    if key == NAMES[0] and len(value) == 1:
        return JsonCall(listed=listed, keyed=True)
    if name is not None and key is not None:
        return JsonCall((name,), (key,), listed=listed)
    for inside, held in value.items():
        found = _json_syntax(held, listed=listed) if isinstance(held, Mapping) else None
        if found is not None and not found.keyed and not found.inside:
            return replace(found, inside=inside)
    return None


def json_format(turns: Turns, lead: int, tail: int) -> Format | None:
    """Calls that are JSON objects containing the name. See the module."""
    bodies = _bodies(turns, lead, tail)
    if bodies is None:
        return None
    one, two = bodies
    first = _json_span(one, NAMES[0])
    if first is None:
        return None
    spans = _both(two, lambda text, name, at: _json_span(text, name, at))
    listed = one[: first.start].rstrip().endswith("[") and one[first.end :].lstrip()[:1] == "]"
    syntax = _json_syntax(first.value, listed=listed)
    if syntax is None:
        return None
    return _format(_around(one, first, None if listed else two, spans), syntax, listed=listed)


def _both(two: str | None, find: Any) -> list[_Span]:
    """The spans of both calls in a text of two calls; empty if either is not found."""
    if two is None:
        return []
    first = find(two, NAMES[0], 0)
    second = None if first is None else find(two, NAMES[1], first.end)
    return [] if second is None else [first, second]


def named_format(turns: Turns, lead: int, tail: int) -> Format | None:
    """Calls that are a name followed by a JSON object. See the module."""
    bodies = _bodies(turns, lead, tail)
    if bodies is None:
        return None
    one, two = bodies
    first = _named_span(one, NAMES[0])
    if first is None:
        return None
    spans = _both(two, _named_span)
    found = _around(one, first, two, spans)
    after = str(first.value)
    numbered = False
    id_marks: tuple[str, ...] = ()
    if len(spans) == 2 and spans[0].value != spans[1].value:  # a number follows the name
        zero, one_ = str(spans[0].value), str(spans[1].value)
        at = next(i for i, (a, b) in enumerate(zip(zero, one_, strict=False)) if a != b)
        if not zero[at].isdigit() or not zero[:at]:
            return None
        numbered, id_marks, after = True, (zero[:at],), zero[at:].lstrip("0123456789")
    elif ID in after:
        mark, after = after.split(ID, 1)
        if not mark or not after:
            return None
        id_marks = (mark,)
    begin, before, id_first = found.begin, "", False
    if ID in begin:
        begin, before = begin.split(ID, 1)
        id_first = True
    if ID in found.opening + found.end + found.closing:
        return None
    closing, end = _tail(found.end)
    syntax = NamedJson(before, after, id_marks, numbered, id_first, tail=closing)
    found = Around(begin, end, found.opening, found.closing, found.between)
    return _format(found, syntax)


def _tail(end: str) -> tuple[str, str]:
    """The text that closes the arguments, and the mark that closes the call."""
    parts = atoms(end.rstrip())
    if len(parts) > 1 and len(parts[-1]) > 1 and not parts[-1].isalnum():
        return "".join(parts[:-1]), parts[-1]
    return "", end


def _named_span(text: str, name: str, after: int = 0) -> _Span | None:
    """From a name to the end of its arguments; `value` is the text between them."""
    at = text.find(name, after)
    brace = text.find("{", at) if at >= 0 else -1
    while brace >= 0:
        found = _object_at(text, brace)
        if found is not None and found[0] == ARGUMENTS:
            start = text.rfind(name, after, brace)
            return _Span(start, found[1], text[start + len(name) : brace])
        brace = text.find("{", brace + 1)
    return None


def unquoted_format(turns: Turns, lead: int, tail: int) -> Format | None:
    """Calls that are a name and an object with bare keys and marked strings. See the module."""
    bodies = _bodies(turns, lead, tail)
    if bodies is None:
        return None
    one, two = bodies
    at = one.find(NAMES[0])
    brace = one.find("{", at)
    key = one.find("qq_text:", brace)
    value = one.find("Qqvaluea", key)
    if min(at, brace, key, value) < 0:
        return None
    quote = one[key + len("qq_text:") : value].strip()
    if not quote or one[value + len("Qqvaluea") :][: len(quote)] != quote:
        return None

    def find(text: str, name: str, after: int) -> _Span | None:
        start = text.find(name, after)
        end = text.find("}", start)
        return None if start < 0 or end < 0 else _Span(start, end + 1)

    first = find(one, NAMES[0], 0)
    assert first is not None
    between = one[at + len(NAMES[0]) : brace]
    found = _around(one, first, two, _both(two, find))
    return _format(found, NamedJson(after=between, quote=quote))


def python_format(turns: Turns, lead: int, tail: int) -> Format | None:
    """Calls written in Python. See the module."""
    bodies = _bodies(turns, lead, tail)
    if bodies is None:
        return None
    one, two = bodies
    first = _python_span(one, NAMES[0])
    if first is None:
        return None
    listed = one[: first.start].rstrip().endswith("[") and one[first.end :].lstrip()[:1] == "]"
    found = _around(one, first, None if listed else two, _both(two, _python_span))
    form = _format(found, PythonCalls(bracketed=listed), listed=listed)
    # Without brackets only the end mark ends the calls.
    return form if listed or form.end else None


def _python_span(text: str, name: str, after: int = 0) -> _Span | None:
    at = text.find(name + "(", after)
    value = text.find("Qqvaluea", at)
    number = text.find("70417", at)
    end = text.find(")", max(value, number))
    if at < 0 or value < 0 or number < 0 or end < 0:
        return None
    return _Span(at, end + 1) if "qq_text=" in text[at:value].replace(" ", "") else None
