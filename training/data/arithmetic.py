"""Addition and subtraction, worked digit by digit when reasoning is on; comparing numbers."""

from __future__ import annotations

from training.data.chat import with_system
from training.data.source import THINGS, Example, Source

PLACES = ("ones", "tens", "hundreds", "thousands")
ADD = [
    "What is {a} + {b}?", "{a} + {b} = ?", "Add {a} and {b}.", "What is {a} plus {b}?",
    "Calculate {a} + {b}.", "How much is {a} + {b}?", "{a}+{b}", "Compute the sum of {a} and {b}.",
]  # fmt: skip
TAKE = [
    "What is {a} - {b}?", "{a} - {b} = ?", "Subtract {b} from {a}.", "What is {a} minus {b}?",
    "Calculate {a} - {b}.", "How much is {a} - {b}?", "{a}-{b}",
]  # fmt: skip
ADD_WORDS = [
    "{n} has {a} {t}s and gets {b} more. How many {t}s does {n} have now?",
    "There are {a} {t}s in a box and {b} in another. How many {t}s are there?",
    "{n} sold {a} {t}s on Monday and {b} on Tuesday. How many {t}s is that?",
]
TAKE_WORDS = [
    "{n} has {a} {t}s and gives away {b}. How many {t}s are left?",
    "Of {a} {t}s in the shop, {b} were sold. How many {t}s are left?",
]


def _digits(n: int, width: int) -> list[int]:
    return [int(c) for c in reversed(str(n).zfill(width))]


def worked_sum(a: int, b: int) -> str:
    """Column addition in words, lowest digit first."""
    width = max(len(str(a)), len(str(b)))
    carry, lines, done = 0, [f"{a} + {b}"], ""
    for place, x, y in zip(PLACES, _digits(a, width), _digits(b, width), strict=False):
        total = x + y + carry
        digit, carried = total % 10, total // 10
        done = f"{digit}{done}"
        lines.append(f"{place}: {x} + {y} + {carry} = {total}, write {digit}, carry {carried}")
        carry = carried
    lines.append(f"sum: {carry or ''}{done}")
    return "\n".join(lines)


def worked_difference(a: int, b: int) -> str:
    """Column subtraction in words for a >= b, lowest digit first."""
    width = len(str(a))
    borrow, lines, done = 0, [f"{a} - {b}"], ""
    for place, x, y in zip(PLACES, _digits(a, width), _digits(b, width), strict=False):
        left = x - y - borrow
        borrowed = int(left < 0)
        digit = left + 10 * borrowed
        done = f"{digit}{done}"
        lines.append(f"{place}: {x} - {y} - {borrow} = {left}, write {digit}, borrow {borrowed}")
        borrow = borrowed
    lines.append(f"difference: {int(done)}")
    return "\n".join(lines)


def _pair(source: Source, digits: int | None) -> tuple[int, int]:
    size = digits or source.pick([1, 2, 2, 2, 2, 2, 3, 3, 4])
    low = 0 if size == 1 else 10 ** (size - 1)

    def draw() -> tuple[int, int]:
        a = source.rng.randint(low, 10**size - 1)
        short = digits is None and source.chance(0.25)
        return a, source.rng.randint(0 if short else low, 10**size - 1)

    return source.split("sum", draw)


def sums(
    source: Source, digits: int | None = None, thinking: bool | None = None, add: bool | None = None
) -> Example:
    """One sum or difference. ``digits``, ``thinking`` and ``add`` fix what is asked."""
    a, b = _pair(source, digits)
    thinking = source.chance(0.7) if thinking is None else thinking
    add = source.chance(0.7) if add is None else add
    if not add and b > a:
        a, b = b, a
    words = digits is None and min(a, b) > 1 and source.chance(0.25)
    if words:
        thing = source.pick([*THINGS, "apple", "pear", "bean"])
        wording = source.pick(ADD_WORDS if add else TAKE_WORDS)
        question = wording.format(n=source.person(), a=a, b=b, t=thing)
    else:
        question = source.template(ADD if add else TAKE).format(a=a, b=b)
    result = a + b if add else a - b
    text = f"{a} {'+' if add else '-'} {b} = {result}"
    answer: dict = {"role": "assistant", "content": text}
    if thinking:
        answer["reasoning_content"] = worked_sum(a, b) if add else worked_difference(a, b)
    messages = [*with_system(source, [{"role": "user", "content": question}], 0.15), answer]
    kind = "sum" if add else "difference"
    return Example(kind, messages, thinking=thinking, expect={"text": text, "number": result})


COMPARE = ["Which is larger, {a} or {b}?", "Which number is {w}: {a} or {b}?"]


def compare(source: Source) -> Example:
    size = source.pick([9, 99, 999])
    a, b = source.number(0, size), source.number(0, size)
    if a == b:
        b += 1
    want = source.pick(["larger", "smaller"])
    question = COMPARE[1].format(a=a, b=b, w=want)
    if want == "larger" and source.chance(0.5):
        question = COMPARE[0].format(a=a, b=b)
    value = max(a, b) if want == "larger" else min(a, b)
    text = f"{value} is {want}."
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
    return Example("compare", with_system(source, messages, 0.1), expect={"text": text})


__all__ = ["compare", "sums", "worked_difference", "worked_sum"]
