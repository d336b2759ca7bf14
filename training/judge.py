"""What counts as a right answer, and the held-out cases of each kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from training.data import arithmetic, chat, code, context, tools
from training.data.source import Example, Source
from training.data.voices import plain


@dataclass
class Answer:
    """What a model answered: text, tool calls as (name, arguments), reasoning, why it ended."""

    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    reasoning: str = ""
    finish: str = "stop"
    raw: str = ""


CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def parse(raw: str, finish: str = "stop") -> Answer:
    """An answer out of the text that a model generated after the prompt."""
    text, reasoning = raw, ""
    if "</think>" in text:
        reasoning, text = text.split("</think>", 1)
        reasoning = reasoning.removeprefix("<think>").strip("\n")
    calls = []
    for body in CALL.findall(text):
        try:
            call = json.loads(body)
            calls.append({"name": call["name"], "arguments": call["arguments"]})
        except (ValueError, KeyError, TypeError):
            calls.append({"name": "", "arguments": {}})
    return Answer(CALL.sub("", text).strip(), calls, reasoning, finish, raw)


def right_calls(example: Example, answer: Answer) -> bool:
    return answer.calls == example.expect["calls"]


def no_calls(example: Example, answer: Answer) -> bool:
    return not answer.calls and "<tool_call>" not in answer.raw


def right_json(example: Example, answer: Answer) -> bool:
    try:
        return json.loads(answer.content) == example.expect["json"]
    except ValueError:
        return False


def right_text(example: Example, answer: Answer) -> bool:
    return answer.content.strip() == example.expect["text"].strip()


def right_fact(example: Example, answer: Answer) -> bool:
    return answer.content.strip().rstrip(".") == example.expect["text"].rstrip(".")


def right_number(example: Example, answer: Answer) -> bool:
    numbers = re.findall(r"-?\d+", answer.content.rsplit("=", 1)[-1])
    return bool(numbers) and int(numbers[-1]) == example.expect["number"]


def right_talk(example: Example, answer: Answer) -> bool:
    """Any of the answers that the generator gives to the same question."""
    for _, answers in chat.TALK:
        if example.expect["text"] in answers:
            return answer.content.strip() in answers
    return False


@dataclass(frozen=True)
class Kind:
    """A kind of case: what it shows, how cases are drawn and judged, and the issue's target."""

    title: str
    draw: Callable[[Source], Example]
    right: Callable[[Example, Answer], bool]
    target: float | None = None


def _off(draw: Callable[[Source], Example]) -> Callable[[Source], Example]:
    """The same cases with reasoning off, as the model is used by default."""

    def without(source: Source) -> Example:
        while True:
            example = draw(source)
            if not example.thinking:
                return example

    return without


def _sum(digits: int, thinking: bool) -> Callable[[Source], Example]:
    return lambda s: arithmetic.sums(s, digits=digits, thinking=thinking, add=True)


KINDS: dict[str, Kind] = {
    "tool_call": Kind("one tool call, name and arguments exact", _off(tools.one_call),
                      right_calls, 0.90),
    "tool_calls": Kind("several tool calls, all exact", _off(tools.several_calls), right_calls),
    "no_call": Kind("no tool call when none is needed", _off(tools.no_call), no_calls, 0.95),
    "tool_result": Kind("answer from a tool's result", _off(tools.from_result), right_text),
    "json": Kind("fields of a paragraph as JSON", _off(context.extraction), right_json, 0.85),
    "facts": Kind("facts given in the context", _off(context.facts), right_fact, 0.85),
    "sum2_think": Kind("two-digit addition with reasoning", _sum(2, True), right_number, 0.85),
    "sum2_plain": Kind("two-digit addition without reasoning", _sum(2, False), right_number),
    "sum3_think": Kind("three-digit addition with reasoning", _sum(3, True), right_number),
    "sum3_plain": Kind("three-digit addition without reasoning", _sum(3, False), right_number),
    "code": Kind("code edits and copies, exact", _off(code.edit), right_text, 0.70),
    "memory": Kind("things told in earlier turns", _off(context.memory), right_text),
    "knowledge": Kind("the table of common knowledge", _off(chat.knowledge), right_text),
    "talk": Kind("small talk", _off(chat.small_talk), right_talk),
    "summary": Kind("one-sentence summary", _off(context.summary), right_text),
    "repeat": Kind("copying random strings", _off(context.repeat), right_text),
    "lookup": Kind("looking up a key", _off(context.lookup), right_text),
}  # fmt: skip


@dataclass
class Case:
    """A held-out example and whether its wording was also unseen in training."""

    example: Example
    unseen_wording: bool


def cases(name: str, count: int, seed: str = "evaluation") -> list[Case]:
    """The same ``count`` held-out cases of a kind on every machine."""
    draw = plain if name == "voice" else KINDS[name].draw
    source, found = Source(f"{seed}-{name}", evaluation=True), []
    for _ in range(count):
        source.unseen_template = False
        example = draw(source)
        found.append(Case(example, source.unseen_template))
    return found
