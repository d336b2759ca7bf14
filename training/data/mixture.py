"""Which families of examples there are and how often training sees each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from training.data import arithmetic, chat, code, context, knowledge, tools
from training.data import source as words
from training.data.source import Example, Source

# family: (generator, share early in training, share later); shares are relative.
FAMILIES: dict[str, tuple[Callable[[Source], Example], float, float]] = {
    "repeat": (context.repeat, 14, 2),
    "lookup": (context.lookup, 14, 3),
    "facts": (context.facts, 14, 13),
    "long_facts": (context.long_facts, 0, 1),
    "json": (context.extraction, 10, 16),
    "summary": (context.summary, 2, 2),
    "memory": (context.memory, 4, 4),
    "talk": (chat.small_talk, 4, 5),
    "knowledge": (chat.knowledge, 6, 7),
    "unknown": (chat.unknown, 1, 2),
    "story": (chat.story, 2, 2),
    "sums": (arithmetic.sums, 6, 12),
    "compare": (arithmetic.compare, 1, 1),
    "code": (code.edit, 10, 18),
    "tool_call": (tools.one_call, 7, 18),
    "tool_calls": (tools.several_calls, 1, 6),
    "no_call": (tools.no_call, 3, 7),
    "no_fit": (tools.no_fit, 2, 7),
    "turns": (tools.turns, 2, 9),
    "tool_result": (tools.from_result, 2, 2),
}


def draw(source: Source, early: float = 0.0) -> Example:
    """One example; ``early`` goes from 1 (start of training) to 0."""
    weights = [early * a + (1 - early) * b for _, a, b in FAMILIES.values()]
    roll = source.rng.random() * sum(weights)
    for (generate, _, _), weight in zip(FAMILIES.values(), weights, strict=True):
        roll -= weight
        if roll < 0:
            return generate(source)
    return generate(source)


def corpus(seed: int | str, count: int) -> Iterator[Example]:
    """``count`` training examples with the late mixture."""
    source = Source(seed)
    return (draw(source) for _ in range(count))


def copied_words() -> set[str]:
    """Words that are copied between prose, JSON and code, so never joined to a space."""
    lists = [
        words.FIRST_NAMES, words.CITIES, words.COLOURS, words.ANIMALS, words.THINGS, words.JOBS,
        words.FOODS, words.DAYS, words.MONTHS, words.NOUNS, tools.VERBS, tools.ROOMS,
        tools.LANGUAGES, tools.UNITS, tools.CURRENCIES,
        [key for key, _, _ in tools.MADE_PARAMETERS],
        [key for record in context.RECORDS.values() for key in record],
        [key for tool in tools.EVERYDAY for key in tool.parameters],
        [word for row in knowledge.FACTS for part in row[1:] for word in part.split()],
    ]  # fmt: skip
    common = {"a", "in", "of", "the", "to", "is", "an", "are", "year", "day", "there", "and"}
    return {word for words_ in lists for word in words_} - common
