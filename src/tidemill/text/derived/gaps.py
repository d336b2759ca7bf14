"""Adapts the white space between a call's marks to the template.

The table holds a family's marks, but its templates differ in the white space between them. Readers
skip that white space; the grammar of enforced calls writes it.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.text.derived.probe_calls import NAMES, Call
from tidemill.text.derived.turns import Turns
from tidemill.text.parsers.format import Format, Gaps, TaggedCall

_ARGUMENTS = {"qq_text": "Qqvaluea", "qq_more": "Qqvalueb"}


def with_gaps(form: Format, turns: Turns) -> Format:
    """A format of tagged calls, with the white space that the template writes.

    Args:
        form: any format. It is returned unchanged if its calls are not tagged or the template does
            not match it.
        turns: of the template.
    """
    syntax = form.syntax
    if not isinstance(syntax, TaggedCall) or syntax.index:
        return form
    text = turns.turn([Call(NAMES[0], _ARGUMENTS)]) or ""
    first, second = (syntax.key[0] + key for key in _ARGUMENTS)
    start = text.rfind(NAMES[0], 0, max(0, text.rfind(first))) + len(NAMES[0])
    one, two = text.find(first, start), text.find(second, start)
    last = text.find(_ARGUMENTS["qq_more"], start)
    if not len(NAMES[0]) < start <= one < two < last:
        return form
    name, between = text[start:one], text[one + len(first) : two]
    mark = syntax.name[1] if name.startswith(syntax.name[1]) else ""
    if not mark and syntax.name[1].strip():
        return form
    close = syntax.value[1] + ("qq_text" + syntax.echoed if syntax.echoed else "")
    value = between.rpartition(close)[2]
    key = between.partition(syntax.key[1])[2]
    key = key.partition(syntax.value[0])[0] if syntax.value[0] else ""
    closing = syntax.end or form.end
    end = text[last:].partition(closing)[0].rpartition(close.replace("qq_text", "qq_more"))[2]
    found = Gaps(name.removeprefix(mark), key, value, end.removeprefix(value))
    if (found.name + found.key + found.value + found.end).strip():
        return form
    return replace(form, syntax=replace(syntax, name=(syntax.name[0], mark), gaps=found))
