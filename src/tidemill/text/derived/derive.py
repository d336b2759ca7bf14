"""The format of a chat template that no row of the table describes.

Conversations made up for it are rendered; by difference the marks around calls, their parts and the
thinking are found, one of the engine's readers is chosen, and what is rendered for many calls must
be read back. What is not read back is no format.
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
from tidemill.text.derived.made_up import NAMES, SCHEMAS, Call
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
    """The format in which a template writes calls and thinking.

    Args:
        template: the model's.
        abilities: of that template.

    Returns:
        The format, which reads back every call that was tried, and how many those were; None where
        none of the engine's readers does.
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
    """Calls without a mark are what an answer begins with: an object or a list."""
    return getattr(form.syntax, "name", None) is not None or bool(
        getattr(form.syntax, "bracketed", False)
    )


def _edges(turns: Turns) -> tuple[int, int] | None:
    """Characters of a turn in front of its calls' marks, and behind them."""
    prompt, plain = turns.prompt(), turns.turn(content=CONTENT)
    calling = turns.turn([Call(NAMES[0], ARGUMENTS)], ids=False)
    if prompt is None or plain is None or calling is None:
        return None
    lead = len(common_prefix(prompt, calling))
    think, answer = think_marks(turns)
    rest = without_thought(calling[lead:], think)
    for mark in (answer, answer_end(turns)):  # an answer of no words stands there
        if mark and rest.lstrip().startswith(mark):
            rest = rest.lstrip().removeprefix(mark)
    tail = len(common_suffix(plain, calling))
    end = boundary(calling, len(calling) - tail, len(calling) - 1) if tail else len(calling)
    return len(calling) - len(rest), tail if end == len(calling) - 1 else len(calling) - end
