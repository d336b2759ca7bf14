"""Which format a model writes: by name, by the table, or derived from its chat template.

The table is asked first. What it says is tried on two turns of made-up calls, since a template may
have a known family's mark and a layout of its own; where they are not read back, or the table knows
no mark, the format is derived from what the template renders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tidemill.text.abilities import Abilities
from tidemill.text.derived.gaps import with_gaps
from tidemill.text.derived.made_up import SCHEMAS
from tidemill.text.derived.turns import Turns
from tidemill.text.derived.verify import gap_behind, verify, verify_thinking
from tidemill.text.parsers.format import Format
from tidemill.text.parsers.formats import FORMATS, THINKING, detect, with_thinking
from tidemill.text.template import ChatTemplate


class Recognised(NamedTuple):
    """A format, and how it was found.

    Attributes:
        form: the format.
        calls: how calls are read, for a person: "calls ...".
    """

    form: Format
    calls: str


def recognised(
    template: ChatTemplate,
    abilities: Abilities,
    tool_format: str | None = None,
    reasoning_format: str | None = None,
) -> Recognised:
    """The format of a model.

    Args:
        template: the one that is rendered where tools are shown.
        abilities: of that template.
        tool_format: a name of the table, or None.
        reasoning_format: a name of the table of thinking, ``none``, or None.

    Raises:
        KeyError: there is no format of that name.
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
    return Recognised(found, f"as {found.name}" if known else "are not read")


def _tried(template: ChatTemplate, abilities: Abilities, found: Format) -> Recognised:
    """The table's format if it reads what the template renders, else a derived one."""
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
        said = f"{verdict.right} of {verdict.rendered} made-up calls were read back"
        return Recognised(form, f"as the template renders them, from {marks!r} ({said})")
    if found.syntax is None:
        return Recognised(found, "are not read: no reader fits what the template renders")
    said = f"as {found.name} by a mark in it, although what it renders is not read back so"
    return Recognised(found, said)


def _with_rendered_thinking(template: ChatTemplate, abilities: Abilities, form: Format) -> Format:
    """A format with the marks around thinking as they are rendered, and what follows them."""
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
