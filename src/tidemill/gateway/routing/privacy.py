"""Which targets may see a request, decided before any byte of it goes out.

A request is private when its sender or its key marks it so, or when a detector finds something in
its text. A private request goes to targets of the residencies alone that its marks allow; where
none is left it is refused. What was found is named by its detector, never by its text, so that an
audit holds no content.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Detector = Callable[[str], bool]

_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_PHONE = re.compile(r"(?<![\w+])(?:\+|00)[1-9](?:[ ()./-]{0,2}\d){7,14}(?!\d)")
_CARD = re.compile(r"(?=(?<!\d)(\d(?:[ -]?\d){12,18})(?!\d))")
_SEPARATORS = re.compile("[ -]")


def luhn(digits: str) -> bool:
    """The digits' check sum is that of a payment card's number."""
    odd, even = digits[-1::-2], digits[-2::-2]
    return (sum(map(int, odd)) + sum(sum(divmod(2 * int(d), 10)) for d in even)) % 10 == 0


def _card(text: str) -> bool:
    return any(luhn(_SEPARATORS.sub("", found[1])) for found in _CARD.finditer(text))


_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_DASHES = re.compile("[\u2010-\u2015\u2212]")


def plain(text: str) -> str:
    """A text as its reader sees it: without invisible characters, and full-width letters and the
    like as the plain ones."""
    return _DASHES.sub("-", unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)))


DETECTORS: Mapping[str, Detector] = {
    "email": lambda text: "@" in text and _EMAIL.search(text) is not None,
    "phone": lambda text: _PHONE.search(text) is not None,
    "card": _card,
}
"""By the name that the configuration calls them."""


def custom(pattern: str) -> Detector:
    """A detector of a regular expression. Raises re.error."""
    search = re.compile(pattern).search
    return lambda text: search(text) is not None


def texts(body: Any) -> Iterator[str]:
    """Every string of a decoded JSON body, names of members included, and its numbers' digits."""
    left = [body]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            left += value
            parts = [part.get("text") for part in value if isinstance(part, dict)]
            if len(parts) > 1:  # one text, cut in parts
                yield "".join(part for part in parts if isinstance(part, str))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{value:.0f}"  # a card's number may stand there without quotes


@dataclass(frozen=True, slots=True)
class Rules:
    """What makes a request private, and where private requests may go.

    Attributes:
        detectors: of text, by name.
        allowed: tags of targets that may see private requests; a target needs one of them.
        always: every request is private.
    """

    detectors: Mapping[str, Detector] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset({"local"})
    always: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one request may do.

    Attributes:
        private: only some targets may see it.
        because: why: ``marked``, ``key``, ``rule``, or the names of detectors; for the audit.
        tags: a target needs one of these; empty and `private`: no target may see it.
    """

    private: bool = False
    because: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()

    def permits(self, tags: frozenset[str]) -> bool:
        """Whether a target with these tags may see the request."""
        return not self.private or not self.tags.isdisjoint(tags)


OPEN = Verdict()


def judge(
    body: Any, rules: Rules, *, marked: bool = False, residencies: Sequence[str] = ()
) -> Verdict:
    """What a request may do.

    Args:
        body: its decoded JSON; read only where there are detectors.
        rules: of the gateway.
        marked: its sender says that it is private.
        residencies: tags that its key is confined to; empty: it is not.
    """
    because = list(found(body, rules.detectors.items())) if rules.detectors else []
    if rules.always:
        because.insert(0, "rule")
    if marked:
        because.insert(0, "marked")
    tags = rules.allowed if because else None
    if residencies:
        because.insert(0, "key")
        own = frozenset(residencies)
        tags = own if tags is None else own & tags
    return OPEN if tags is None else Verdict(True, tuple(because), tags)


def found(body: Any, detectors: Iterable[tuple[str, Detector]]) -> list[str]:
    """Names of the detectors that find something in a decoded JSON body."""
    every = list(texts(body))
    every += [plain(text) for text in every if not text.isascii()]
    return [name for name, finds in detectors if any(map(finds, every))]
