"""Detects a model's format: by name, from the table, or derived from its chat template.

The table has priority. Its format is verified with two turns of probe calls, because a template may
use a known family's mark with a different layout. If they are not parsed back, or the table knows
no mark of the template, the format is derived from what the template renders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tidemill.text.abilities import Abilities
from tidemill.text.derived.gaps import with_gaps
from tidemill.text.derived.probe_calls import SCHEMAS
from tidemill.text.derived.turns import Turns
from tidemill.text.derived.verify import gap_behind, verify, verify_thinking
from tidemill.text.parsers.format import Format
from tidemill.text.parsers.formats import FORMATS, THINKING, detect, with_thinking
from tidemill.text.template import ChatTemplate


class Recognised(NamedTuple):
    """A format, and how it was detected.

    Attributes:
        form: the format.
        calls: how calls are parsed, for humans; completes "calls ...".
    """

    form: Format
    calls: str


def recognised(
    template: ChatTemplate,
    abilities: Abilities,
    tool_format: str | None = None,
    reasoning_format: str | None = None,
) -> Recognised:
    """Detect a model's format.

    Args:
        template: the one for conversations with tools.
        abilities: of that template.
        tool_format: a name in `FORMATS`, or None.
        reasoning_format: a name in `THINKING`, ``none``, or None.

    Raises:
        KeyError: unknown name.
    """
    found = detect(template.source)
    if tool_format is not None:
        chosen = Recognised(FORMATS[tool_format], f"as {tool_format}")
    elif template.exists and abilities.calls:
        chosen = _tried(template, abilities, found)
    else:
        chosen = _of_table(found)
    form = chosen.form
    if reasoning_format == "none":
        form = replace(form, think=None)
    elif reasoning_format is not None:
        form = replace(form, think=THINKING[reasoning_format])
    else:
        form = with_thinking(form, found.think)
        if template.exists and abilities.history:
            form = _with_rendered_thinking(template, abilities, form)
    return Recognised(form, chosen.calls)


def _of_table(found: Format) -> Recognised:
    known = found.syntax is not None
    return Recognised(found, f"as {found.name}" if known else "are not parsed")


def _tried(template: ChatTemplate, abilities: Abilities, found: Format) -> Recognised:
    """The table's format if it parses what the template renders, else a derived one."""
    if found.syntax is not None:
        turns = Turns(template, abilities, SCHEMAS)
        verdict = verify(found, turns, most=2)
        if verdict.sure or not verdict.rendered:
            return _of_table(with_gaps(found, turns))
    from tidemill.text.derived.derive import derive  # most templates are in the table

    derived = derive(template, abilities)
    if derived is not None:
        form, verdict = derived
        marks = form.begin or form.section[0] or "the answer's beginning"
        counts = f"{verdict.right} of {verdict.rendered} probe calls were parsed back"
        return Recognised(form, f"as the template renders them, from {marks!r} ({counts})")
    if found.syntax is None:
        return Recognised(found, "are not parsed: the template's tool call format is not known")
    how = f"as {found.name} by a mark in it, although its rendered calls are not parsed back"
    return Recognised(found, how)


def _with_rendered_thinking(template: ChatTemplate, abilities: Abilities, form: Format) -> Format:
    """A format with the marks of thinking and the gap after them as the template renders them."""
    turns = Turns(template, abilities, SCHEMAS if abilities.tools else {})
    if form.think is not None:
        gap = gap_behind(form.think, turns)
        return form if gap is None else replace(form, think=replace(form.think, gap=gap))
    from tidemill.text.derived.thinking import think_marks

    think, answer = think_marks(turns, form if form.syntax is not None else None)
    if think is None:
        return form
    more = tuple(mark for mark in (think.gap.strip(), answer) if mark)
    made = replace(form, think=think, dropped=(*form.dropped, *more))
    return made if verify_thinking(made, turns) else form
