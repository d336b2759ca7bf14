"""Keeps e-mail addresses and phone numbers from a model: replaced before, restored after.

Options:
    model: the model that answers; default: the server's default.

The model sees ``[EMAIL_1]`` and ``[PHONE_1]``, the same for equal ones, in every message. Where its
answer has them, the client gets the originals, also where a stream's parts cut through one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tidemill.pipelines import Models, Request

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PHONE = re.compile(r"(?<![\w.])(?:\+|\(\+?)?\d(?:[ \t().\-/]{0,2}\d){6,14}(?!\w)")
_NO_PHONE = re.compile(
    r"\d{4}-\d{2}-\d{2}"  # dates
    r"|\d{1,2}[./]\d{1,2}[./]\d{4}"
    r"|\d{1,3}(?:\.\d{1,3}){3}"  # addresses of machines
)
_PLACEHOLDER = re.compile(r"\[(?:EMAIL|PHONE)_\d+\]")


class Redactor:
    """Replaces what is private by placeholders and remembers them.

    Args:
        taken: texts whose own words of that form are no placeholders.

    Attributes:
        originals: placeholder -> what it stands for.
    """

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self.originals: dict[str, str] = {}
        self._placeholders: dict[str, str] = {}
        self._taken = {word for text in taken for word in _PLACEHOLDER.findall(text)}

    def redact(self, text: str) -> str:
        """The text without e-mail addresses and phone numbers."""
        text = _EMAIL.sub(lambda found: self._placeholder("EMAIL", found[0]), text)
        return _PHONE.sub(self._phone, text)

    def _phone(self, found: re.Match[str]) -> str:
        number = found[0]
        return number if _NO_PHONE.fullmatch(number) else self._placeholder("PHONE", number)

    def _placeholder(self, kind: str, original: str) -> str:
        known = self._placeholders.get(original)
        if known is not None:
            return known
        number = 1
        while (name := f"[{kind}_{number}]") in self.originals or name in self._taken:
            number += 1
        self.originals[name], self._placeholders[original] = original, name
        return name

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A conversation with its texts redacted: contents, their text parts, tool calls."""
        return [{k: self._value(k, v) for k, v in message.items()} for message in messages]

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and key in ("content", "text", "arguments", "reasoning_content"):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {k: self._value(k, v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._value(key, one) for one in value]
        return value


class Restorer:
    """Puts the originals back into a text that comes in parts.

    Args:
        originals: see `Redactor`.

    Attributes:
        held: the end of the text so far, which may be the beginning of a placeholder.
    """

    def __init__(self, originals: Mapping[str, str]) -> None:
        self._originals = originals
        self.held = ""

    def push(self, text: str) -> str:
        """What is certain of the text so far and was not returned yet."""
        text = self.held + text
        start = text.rfind("[")
        tail = text[start:] if start >= 0 else ""
        if not tail or not any(p.startswith(tail) and p != tail for p in self._originals):
            start = len(text)
        self.held = text[start:]
        return self._restored(text[:start])

    def finish(self) -> str:
        """What was held back."""
        held, self.held = self.held, ""
        return held

    def _restored(self, text: str) -> str:
        return _PLACEHOLDER.sub(lambda found: self._originals.get(found[0], found[0]), text)


def texts_of(value: Any) -> list[str]:
    """All strings in a conversation."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [text for one in value for text in texts_of(one)] if isinstance(value, list) else []


async def answer(request: Request, models: Models) -> AsyncIterator[str]:
    """See the module docstring."""
    model = models[request.options.get("model", models.default)]
    redactor = Redactor(texts_of(request.messages))
    messages = redactor.messages(request.messages)
    restorer = Restorer(redactor.originals)
    async for text in model.stream(messages, **request.sampling):
        if restored := restorer.push(text):
            yield restored
    yield restorer.finish()
