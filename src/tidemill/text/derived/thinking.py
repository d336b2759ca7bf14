"""Derives the marks of thinking and answers from turns with and without them."""

from __future__ import annotations

from dataclasses import replace

from tidemill.text.derived.probe_calls import NAMES, Call
from tidemill.text.derived.turns import (
    CONTENT,
    THOUGHT,
    Turns,
    atoms,
    common_prefix,
    without_thought,
)
from tidemill.text.parsers.format import Format, ThinkMarks

_CALL = (Call(NAMES[0], {"qq_text": "x"}),)


def answer_end(turns: Turns) -> str:
    """The mark that closes an answer before calls; empty if there is none."""
    plain, calling = turns.turn(content=CONTENT) or "", turns.turn(_CALL, CONTENT) or ""
    return common_prefix(plain.partition(CONTENT)[2], calling.partition(CONTENT)[2]).strip()


def with_answer(form: Format, turns: Turns) -> Format:
    """Add the marks of thinking and of plain answers to a format."""
    think, mark_after_thinking = think_marks(turns, form)
    dropped = [*form.dropped]
    prompt, plain = turns.prompt() or "", turns.turn(content=CONTENT) or ""
    before, _, behind = plain[len(common_prefix(prompt, plain)) :].partition(CONTENT)
    before = without_thought(before, think)
    if think is not None and think.gap.strip():
        dropped.append(think.gap.strip())
    answer, ending = mark_after_thinking or before.strip(), answer_end(turns)
    dropped += [answer, ending]
    if answer and not ending:
        closing = next((a for a in atoms(behind) if a.strip()), "")
        dropped.append(closing if len(closing) > 1 else "")
    marks = tuple(dict.fromkeys(mark for mark in dropped if mark))
    return replace(form, think=think, dropped=marks, answer=answer)


def think_marks(turns: Turns, form: Format | None = None) -> tuple[ThinkMarks | None, str]:
    """The marks around thinking, and the mark of the answer after it (empty: none).

    Args:
        turns: of the template.
        form: the format of the calls, if known.
    """
    prompt = turns.prompt(thinking=True) or ""
    plain, calling = turns.turn(content=CONTENT, thought=THOUGHT), turns.turn(_CALL, "", THOUGHT)
    behind = [
        text.partition(THOUGHT)[2].partition(CONTENT)[0]
        for text in (plain,)
        if text is not None and THOUGHT in text and CONTENT in text.partition(THOUGHT)[2]
    ]
    if calling is not None and THOUGHT in calling and form is not None:
        mark = form.section[0] or form.begin
        rest = calling.partition(THOUGHT)[2]
        if mark and mark in rest:
            behind.append(rest.partition(mark)[0])
    turn = next((t for t in (plain, calling) if t is not None and THOUGHT in t), None)
    if not behind or turn is None:
        return None, ""
    close = behind[0] if len(behind) == 1 else common_prefix(*behind)
    lead = common_prefix(prompt, turn)
    before = turn.partition(THOUGHT)[0]
    answer = behind[0][len(close) :].strip() if len(behind) > 1 else ""
    opened = before[len(lead) :].strip()
    if not opened and close.strip() not in (begun := prompt[len(lead) :].strip()):
        opened = begun  # only the prompt contains the opening mark; a turn does not repeat it
    if not opened:
        opened, close, more = _last_mark(before, close)
        answer = answer or more
    if not close.strip() or not opened:
        return None, ""
    header = _header(turns.prompt() or "", close)
    close, gap = (close[: close.rindex(header)], header) if header else (close, "")
    gap = gap or close[len(close.rstrip()) :]
    return ThinkMarks(opened, close.strip(), gap), answer


def _last_mark(before: str, close: str) -> tuple[str, str, str]:
    """The mark at the end of a text, the one that closes it, and the text after that.

    A mark may consist of three atoms, of which the middle one names the section.
    """
    found = [a for a in atoms(before) if a.strip()]
    closing = [a for a in atoms(close) if a.strip()]
    if len(closing) > 2 and closing[1].isalnum() and found[-2:-1] == closing[1:2]:
        return "".join(found[-3:]), "".join(closing[:3]), "".join(closing[3:])
    return (found[-1] if found and len(found[-1]) > 1 else ""), close, ""


def _header(prompt: str, close: str) -> str:
    """The header of the assistant's turn if it is repeated after the thinking; else empty."""
    parts = [a for a in atoms(prompt) if a.strip()]
    for start in range(len(parts) - 1):
        header = "".join(parts[start:])
        whole = len(parts[start]) > 1 and not parts[start].isalnum()  # begins with a mark
        if whole and close.strip() != header and close.rstrip().endswith(header):
            return header
    return ""
