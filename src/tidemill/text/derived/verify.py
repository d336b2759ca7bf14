"""Verifies a format by a round trip: probe calls are rendered and parsed back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.text.derived.probe_calls import NAMES, SCHEMA, probes
from tidemill.text.derived.turns import (
    CONTENT,
    THOUGHT,
    Turns,
    common_prefix,
    without_thought,
)
from tidemill.text.parsers.engine import OutputParser, ToolSpec
from tidemill.text.parsers.events import (
    CallArguments,
    CallStart,
    Content,
    Malformed,
    Reasoning,
)
from tidemill.text.parsers.format import Format, ThinkMarks


class _Tool(NamedTuple):
    name: str
    schema: str


TOOLS: Sequence[ToolSpec] = [_Tool(name, json.dumps(SCHEMA)) for name in NAMES]


class Verdict(NamedTuple):
    """How many rendered turns were parsed back to the same calls, and how many were rendered."""

    right: int
    rendered: int

    @property
    def sure(self) -> bool:
        """Every turn was parsed back."""
        return self.rendered > 0 and self.right == self.rendered


def verify(form: Format, turns: Turns, *, most: int = 100) -> Verdict:
    """Render the probe calls and parse them back.

    Args:
        form: the format.
        turns: of the template.
        most: maximum number of turns.
    """
    prompt = turns.prompt() or ""
    rendered = right = 0
    for number, calls in enumerate(probes()):
        if number >= most:
            break
        text = turns.turn(calls)
        # A template may support one call at most: it then rejects the turn or drops the others.
        names = [call.name for call in calls]
        left_out = any((text or "").count(name) < names.count(name) for name in names)
        if text is None or (left_out and len(calls) > 1):
            continue
        rendered += 1
        body = text[len(common_prefix(prompt, text)) :]
        right += _read(form, body) == [(c.name, dict(c.arguments)) for c in calls]
    return Verdict(right, rendered)


def verify_thinking(form: Format, turns: Turns) -> bool:
    """A turn with thinking and an answer is parsed back as both."""
    prompt, text = turns.prompt(thinking=True), turns.turn(content=CONTENT, thought=THOUGHT)
    if prompt is None or text is None or THOUGHT not in text or form.think is None:
        return False
    lead = common_prefix(prompt, text)
    opened = any(t.rstrip().endswith(form.think.open.strip()) for t in (prompt, lead))
    parser = OutputParser(form, starts_in_reasoning=opened)
    events = [*parser.push(text[len(lead) :]), *parser.finish()]
    thought = "".join(e.text for e in events if isinstance(e, Reasoning))
    said = "".join(e.text for e in events if isinstance(e, Content))
    return thought.strip() == THOUGHT and said.strip().startswith(CONTENT)


def gap_behind(think: ThinkMarks, turns: Turns) -> str | None:
    """White space that a template writes between thinking and answer; None if not only that."""
    text = turns.turn(content=CONTENT, thought=THOUGHT) or ""
    gap = text.partition(THOUGHT)[2].partition(CONTENT)[0].lstrip()
    mark = think.close.strip()
    if not gap.startswith(mark) or gap.removeprefix(mark).strip():
        return None
    return gap.removeprefix(mark)


def _read(form: Format, body: str) -> list[tuple[str, Mapping[str, Any]]] | None:
    """The calls of an output; None if content precedes the calls or a call is malformed."""
    body = without_thought(body, form.think)  # the prompt may contain its opening mark
    parser = OutputParser(form, TOOLS)
    events = [*parser.push(body), *parser.finish()]
    if any(isinstance(e, Malformed) for e in events):
        return None
    first = next((i for i, e in enumerate(events) if isinstance(e, CallStart)), len(events))
    if any(isinstance(e, Content) for e in events[:first]):
        return None
    found: list[tuple[str, Mapping[str, Any]]] = []
    for event in events:
        if isinstance(event, CallStart):
            text = "".join(
                e.text for e in events if isinstance(e, CallArguments) and e.index == event.index
            )
            found.append((event.name, json.loads(text)))
    return found
