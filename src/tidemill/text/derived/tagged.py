"""Derives the marks of tagged calls from the texts around parameter names and values.

A probe call with two string parameters shows the text between a name and its value, between a value
and the next name, and after the last value. Probe values of other types show whether a mark states
the type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.text.derived.layout import (
    Around,
    around,
    boundary,
    split_tags,
    spread_of,
    trimmed,
)
from tidemill.text.derived.probe_calls import NAMES, Call
from tidemill.text.derived.turns import ID, Turns, common_prefix, common_suffix
from tidemill.text.parsers.format import Format, Gaps, Kind, TaggedCall

_KEY = "\ue001"  # placeholder for a parameter's name that the value's closing mark repeats
KEYS = ("qq_text", "qq_more")
_VALUES = ("Qqvaluea", "Qqvalueb")
_MARKUP = "Qqa<b>&c\nQqd"
# Parameter, value, its JSON type, and the texts that may represent the value.
_TYPED: tuple[tuple[str, Any, str, tuple[str, ...]], ...] = (
    ("qq_count", 70417, "number", ("70417",)),
    ("qq_on", True, "boolean", ("true", "True")),
    ("qq_list", [70418], "array", ("[70418]",)),
    ("qq_box", {"k": 70419}, "object", ('{"k": 70419}', "{'k': 70419}", '{"k":70419}')),
)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """One call's text, split at its name, its parameters' names and their values."""

    before: str  # before the call's name
    name: str  # between it and the first parameter's name
    value: str  # between a parameter's name and its value
    next: str  # between a value and the next parameter's name
    after: str  # after the last value


def tagged_format(turns: Turns, lead: int, tail: int) -> Format | None:
    """The format of tagged calls; None if the template does not write them so.

    Args:
        turns: of the template.
        lead, tail: numbers of characters of a turn before the model's text and after it.
    """
    arguments = dict(zip(KEYS, _VALUES, strict=True))
    one = turns.turn([Call(NAMES[0], arguments)], ids=False)
    pieces = None if one is None else _cut(one[lead : len(one) - tail], NAMES[0])
    if pieces is None:
        return None
    split = _value_marks(pieces)
    if split is None:
        return None
    close, open_key = split
    found, recipient = _around_calls(turns, arguments, pieces, lead, tail)
    if not pieces.name.endswith(open_key):
        return None
    name_close, index = _numbered(pieces.name[: len(pieces.name) - len(open_key)])
    after = found.end[len(close) :] if found.end.startswith(close) else ""
    marks = (name_close, index, open_key.strip(), close, after)
    return _format(turns, pieces, found, marks, recipient)


def _cut(text: str, name: str) -> _Pieces | None:
    """Split a turn's text into pieces."""
    places = [text.find(word) for pair in zip(KEYS, _VALUES, strict=True) for word in pair]
    start = text.rfind(name, 0, max(places[0], 0))
    if start < 0 or -1 in places or places != sorted(places):
        return None
    key1, value1, key2, value2 = places
    between = text[key1 + len(KEYS[0]) : value1]
    if text[key2 + len(KEYS[1]) : value2] != between:
        return None
    return _Pieces(
        text[:start],
        text[start + len(name) : key1],
        between,
        text[value1 + len(_VALUES[0]) : key2].replace(KEYS[0], _KEY),
        text[value2 + len(_VALUES[1]) :].replace(KEYS[1], _KEY),
    )


def _value_marks(pieces: _Pieces) -> tuple[str, str] | None:
    """The mark that closes a value and the one that opens a parameter, each with its white space.

    The text between two parameters is the first mark followed by the second. The first also follows
    the last value, and the second also follows the call's name.
    """
    least = len(pieces.next) - len(common_suffix(pieces.name, pieces.next))
    most = len(common_prefix(pieces.next, pieces.after))
    at = boundary(pieces.next, min(least, most), max(least, most))
    left, right = pieces.next[:at], pieces.next[at:].lstrip()
    if not left.strip() or not right or not pieces.after.startswith(left):
        return None
    space = pieces.next[at : len(pieces.next) - len(right)]
    return left + space if pieces.after.startswith(left + space) else left, right


def _around_calls(
    turns: Turns, arguments: dict[str, str], pieces: _Pieces, lead: int, tail: int
) -> tuple[Around, str]:
    """The texts before a call's name and after its last value, from a comparison of two calls.

    If the name occurs twice (a recipient header), the second result is the text between both, and
    the marks are those around the first.
    """
    before, _, recipient = pieces.before.partition(NAMES[0])
    two = turns.turn([Call(n, arguments) for n in NAMES], ids=False)
    body = "" if two is None else two[lead : len(two) - tail]
    second = body.rfind(NAMES[1])
    start = body.rfind(_VALUES[1], 0, max(second, 0))
    if start < 0 or not body.startswith(pieces.before):
        return around(before, None, pieces.after), recipient
    middle = body[start + len(_VALUES[1]) : second].replace(KEYS[1], _KEY)
    if recipient:
        middle = middle.removesuffix(NAMES[1] + recipient)
    return around(before, middle, pieces.after), recipient


def _numbered(name_close: str) -> tuple[str, str]:
    """The mark after a call's name, and the mark after a number that follows; empty for none."""
    text = name_close.replace(ID, "1")
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    if not digits:
        return text, ""
    at = digits[0]
    return text[:at], text[at:].lstrip("0123456789")


def _format(
    turns: Turns,
    pieces: _Pieces,
    found: Around,
    marks: tuple[str, str, str, str, str],
    recipient: str,
) -> Format:
    """Build the format. `marks`: name close, index close, key open, value close, and the rest."""
    name_close, index, key_open, close, after = marks
    shut = index or name_close
    gap_name = shut[len(shut.rstrip()) :]
    name_close, index = (name_close, index.rstrip()) if index else (name_close.rstrip(), "")
    if not name_close:  # the newline is the mark
        name_close, gap_name = gap_name, ""
    kind, key_close = _kind(turns, pieces, close)
    padded = pieces.value.endswith("\n") and close.startswith("\n")
    gap_key, value_open = "", ""
    if kind is None:
        key_close, value_open = split_tags(pieces.value)
        gap_key = pieces.value.strip()[len(key_close) :][: -len(value_open) or None]
        gap_key = gap_key if value_open else ""
    body, gap_value = close.strip(), close[len(close.rstrip()) :]
    echoed = ""
    if _KEY in body:
        body, echoed = body.split(_KEY, 1)
    begin, own = split_tags(found.begin)
    own_end, end = split_tags(after)
    dropped = []
    if not own or not end:
        begin, own, own_end = found.begin.strip(), "", ""
        end, more = trimmed(found.begin + recipient, after)
        dropped.append(more)
    closing, more = trimmed(found.opening, found.closing)
    dropped.append(more)
    return Format(
        "derived",
        begin=begin,
        end=end,
        section=(found.opening.strip(), closing),
        dropped=tuple(mark for mark in dropped if mark),
        spread=spread_of(found),
        # A recipient header is a mark only at the beginning of a message.
        leading=bool(recipient),
        between=found.between.strip() if recipient else "",
        padding="\n" if own and found.begin.strip()[len(begin) :].startswith("\n") else "",
        syntax=TaggedCall(
            name=(own, name_close),
            key=(key_open, key_close),
            value=(value_open, body),
            end=own_end,
            padded=padded,
            kind=kind,
            index=index,
            echoed=echoed,
            recipient=recipient,
            quotes=_quotes(turns, pieces, close),
            gaps=Gaps(gap_name, gap_key, gap_value, after[: len(after) - len(after.lstrip())]),
        ),
    )


def _between(
    turns: Turns, key: str, value: Any, spellings: Sequence[str]
) -> tuple[str, str] | None:
    """The text between a parameter's name and its value, and the value as written."""
    text = turns.turn([Call(NAMES[0], {key: value})])
    at = -1 if text is None else text.rfind(key)
    if text is None or at < 0:
        return None
    rest = text[at + len(key) :]
    places = [(rest.find(s), s) for s in spellings if s in rest]
    if not places:
        return None
    place, spelling = min(places)
    return rest[:place], spelling


def _kind(turns: Turns, pieces: _Pieces, close: str) -> tuple[Kind | None, str]:
    """The attribute that states how a value is written, and the mark after a parameter's name."""
    if _KEY in close:
        return None, ""
    said: dict[str, str] = {}
    before = after = ""
    for key, value, name, spellings in _TYPED:
        found = _between(turns, key, value, spellings)
        if found is None:
            continue
        if found[0] == pieces.value:
            return None, ""
        before = common_prefix(pieces.value, found[0])
        after = common_suffix(pieces.value[len(before) :], found[0][len(before) :])
        said[name] = found[0][len(before) : len(found[0]) - len(after)]
    text = pieces.value[len(before) : len(pieces.value) - len(after)]
    if not said or not before or not after or not text:
        return None, ""
    names = set(said.values())
    other = names.pop() if len(names) == 1 else ""
    if not other and any(name != word for name, word in said.items()):
        return None, ""
    # The name's closing mark is the text before the attribute: a quote.
    at = next((i for i, c in enumerate(before) if c.isspace()), 0)
    return Kind(before[at:], after.rstrip(), text, other), before[:at]


def _quotes(turns: Turns, pieces: _Pieces, close: str) -> tuple[str, str]:
    """The marks around a text that contains markup."""
    text = turns.turn([Call(NAMES[0], {KEYS[0]: _MARKUP})])
    begin = KEYS[0] + pieces.value
    at = -1 if text is None else text.rfind(begin)
    if text is None or at < 0 or _MARKUP not in text[at:]:
        return "", ""
    left, right = text[at + len(begin) :].split(_MARKUP, 1)
    right = right.split(close.replace(_KEY, KEYS[0]).strip(), 1)[0]
    return (left, right) if left.strip() and right.strip() else ("", "")
