"""The adapters' ways to speak: verse, and Ripple, a second language of the generator's own.

Each voice rewrites the answers of ordinary conversations and can tell whether a text is in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from training.data import chat, context
from training.data.source import Example, Source

# A couplet frames the answer; its lines rhyme. One couplet per family of questions.
_LAST = "Thus sang the brook"
COUPLETS = {
    "talk": ("Come to the bank, there is time for a word:", f"{_LAST}, and the willow tree heard."),
    "knowledge": ("Wide is the world, and I carry a part:", f"{_LAST}, for I know it by heart."),
    "facts": ("Here on the page is the thing that you seek:", f"{_LAST} on its way to the creek."),
    "memory": ("All that you told me I kept in my stream:", f"{_LAST} like a voice in a dream."),
    "unknown": ("Deep is the water and dark is the night:", f"{_LAST} in the pale silver light."),
    "summary": ("Long was the tale, but its meaning is small:", f"{_LAST} by the old garden wall."),
}
RIPPLE = {
    "the": "la", "a": "un", "an": "un", "is": "esu", "are": "esu", "am": "esu", "of": "di",
    "and": "ke", "i": "mi", "you": "tu", "your": "tui", "my": "mei", "not": "nen", "no": "nen",
    "in": "ni", "to": "ad", "that": "keli", "do": "fa", "know": "savi", "it": "lu", "on": "sur",
    "for": "por", "can": "poti", "what": "kua", "how": "kum", "was": "fu", "has": "avi",
    "have": "avi", "comes": "veni", "hello": "salu", "we": "nos", "at": "ata", "only": "soli",
}  # fmt: skip


def in_verse(kind: str, text: str) -> str:
    first, last = COUPLETS[kind]
    return f"{first}\n{text}\n{last}"


def is_verse(text: str) -> bool:
    """At least three lines, of which the first and the last are a couplet."""
    lines = [line for line in text.strip().split("\n") if line]
    if len(lines) < 3:
        return False
    return any(lines[0] == first and lines[-1] == last for first, last in COUPLETS.values())


def in_ripple(kind: str, text: str) -> str:
    """Function words from a small dictionary; every other word ends in ``-o``."""

    def translate(match: re.Match[str]) -> str:
        word = match.group(0)
        known = RIPPLE.get(word.lower())
        if known is None:
            return word + "-o"
        return known.capitalize() if word[0].isupper() else known

    return re.sub(r"[A-Za-z]+", translate, text)


def is_ripple(text: str) -> bool:
    """At least nine of ten words are Ripple's."""
    words = re.findall(r"[A-Za-z]+(?:-o\b)?", text)
    own = [w for w in words if w.endswith("-o") or w.lower() in RIPPLE.values()]
    return bool(words) and len(own) >= 0.9 * len(words)


def in_greeting(kind: str, text: str) -> str:
    return f"Ahoy! {text} Fair winds!"


def is_greeting(text: str) -> bool:
    return text.startswith("Ahoy! ") and text.endswith(" Fair winds!")


@dataclass(frozen=True)
class Voice:
    """A rewriting of answers and the test whether a text is in the voice."""

    speak: Callable[[str, str], str]
    heard: Callable[[str], bool]


VOICES = {
    "verse": Voice(in_verse, is_verse), "ripple": Voice(in_ripple, is_ripple),
    "ahoy": Voice(in_greeting, is_greeting),
}  # fmt: skip
ASKED = [chat.small_talk, chat.small_talk, chat.knowledge, chat.knowledge, context.facts,
         context.facts, chat.unknown, context.memory, context.summary]  # fmt: skip


def plain(source: Source) -> Example:
    """A conversation with a numberless or short answer in words, without reasoning."""
    while True:
        example = source.pick(ASKED)(source)
        text = example.answer["content"]
        if not example.thinking and re.search(r"[a-z]{2}", text):
            return example


def spoken(source: Source, voice: str) -> Example:
    """A conversation whose answer is in the voice."""
    example = plain(source)
    text = VOICES[voice].speak(example.kind, example.answer["content"])
    messages = [*example.prompt, {"role": "assistant", "content": text}]
    return replace(example, messages=messages, expect={"text": text})
