"""Derives the format of a chat template that is not in the table.

Probe conversations are rendered and compared. The differences show the marks around calls, their
parts and the thinking, and so which of the parser's readers applies. A derived format is accepted
only if it parses back all calls of a set of rendered probes.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.text.abilities import Abilities
from tidemill.text.derived.calls import (
    ARGUMENTS,
    json_format,
    named_format,
    python_format,
    unquoted_format,
)
from tidemill.text.derived.layout import boundary
from tidemill.text.derived.probe_calls import NAMES, SCHEMAS, Call
from tidemill.text.derived.tagged import tagged_format
from tidemill.text.derived.thinking import (
    answer_end,
    think_marks,
    with_answer,
)
from tidemill.text.derived.turns import (
    CONTENT,
    Turns,
    common_prefix,
    common_suffix,
    without_thought,
)
from tidemill.text.derived.verify import Verdict, verify
from tidemill.text.parsers.format import Format
from tidemill.text.template import ChatTemplate

_LAYOUTS: tuple[Callable[[Turns, int, int], Format | None], ...] = (
    json_format,
    named_format,
    tagged_format,
    python_format,
    unquoted_format,
)


def derive(template: ChatTemplate, abilities: Abilities) -> tuple[Format, Verdict] | None:
    """Derive a template's format of calls and thinking.

    Args:
        template: the model's.
        abilities: of that template.

    Returns:
        The format, which parses back every probe call, and the counts of that check; None if no
        reader of the parser fits.
    """
    turns = Turns(template, abilities, SCHEMAS)
    edges = _edges(turns)
    if edges is None:
        return None
    for layout in _LAYOUTS:
        form = layout(turns, *edges)
        if form is None or not (form.begin or form.section[0] or _is_first(form)):
            continue
        form = with_answer(form, turns)
        if verify(form, turns, most=2).sure:
            verdict = verify(form, turns)
            if verdict.sure:
                return form, verdict
    return None


def _is_first(form: Format) -> bool:
    """Calls without a mark that begin the answer: an object or a list."""
    return getattr(form.syntax, "name", None) is not None or bool(
        getattr(form.syntax, "bracketed", False)
    )


def _edges(turns: Turns) -> tuple[int, int] | None:
    """Numbers of characters of a turn before its calls' marks and after them."""
    prompt, plain = turns.prompt(), turns.turn(content=CONTENT)
    calling = turns.turn([Call(NAMES[0], ARGUMENTS)], ids=False)
    if prompt is None or plain is None or calling is None:
        return None
    lead = len(common_prefix(prompt, calling))
    think, answer = think_marks(turns)
    rest = without_thought(calling[lead:], think)
    for mark in (answer, answer_end(turns)):  # the marks of an empty answer precede the calls
        if mark and rest.lstrip().startswith(mark):
            rest = rest.lstrip().removeprefix(mark)
    tail = len(common_suffix(plain, calling))
    end = boundary(calling, len(calling) - tail, len(calling) - 1) if tail else len(calling)
    return len(calling) - len(rest), tail if end == len(calling) - 1 else len(calling) - end
