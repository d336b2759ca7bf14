"""An answer that one engine began is gone on with by another, with the same tokens.

The token at a position depends on the request and its seed alone, never on the engine (of one model
and one kind of machine). So the request is sent again, with the seed that the first engine had, and
what the client has already is left out of the second answer, compared with it on the way: an answer
that differs ends with an error instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tidemill.gateway.asked import Asked
from tidemill.gateway.framed import is_comment
from tidemill.gateway.shapes import SHAPES, Event, Key, Shape
from tidemill.server.errors import reject

if TYPE_CHECKING:
    from tidemill.gateway.opened import Opened

MAX_SENT_BYTES = 4 << 20
"""Of an answer that can be gone on with."""

_PER_TOKEN = (
    *("logprobs", "top_logprobs", "return_token_ids", "prompt_logprobs", "echo", "include"),
)
"""Members whose answers have more than texts for each token."""


def seeded(asked: Asked, random: Random) -> Asked:
    """A request whose tokens are decided: with a seed, where it streams and has none. Dialects
    without a seed get it in a header."""
    if not (asked.stream and asked.path in SHAPES):
        return asked
    if bytes(asked.members.get("seed", b"null")).strip() != b"null":
        return asked
    return replace(asked, seed=random.getrandbits(31))


def continues(opened: Opened) -> bool:
    """Whether another engine can go on with an answer."""
    asked = opened.route.asked
    plain = all(
        bytes(asked.members.get(name, b"null")).strip() in (b"null", b"false", b"0", b"[]")
        for name in _PER_TOKEN
    )
    return opened.route.target.kind.continues and asked.path in SHAPES and plain


class Continuation:
    """What the client has of an answer; its parts pass through `take`.

    Args:
        shape: of the answer's stream.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._sent: list[bytes] | None = []
        self._size = 0
        self._left: dict[Key, str] | None = None  # while a second answer repeats what was sent
        self._once: dict[Key, Event] = {}  # events that the client has, by their keys
        self._first: Event | None = None
        self._names: dict[str, str] = {}  # identities of the second answer -> of the first
        self._number = 0  # events that the client has

    @property
    def possible(self) -> bool:
        """It is known what was sent."""
        return self._sent is not None

    def take(self, part: bytes) -> bytes:
        """A part of the answer as the client gets it.

        Raises:
            Rejection: it is not the answer that was begun.
        """
        if self._left is not None and not is_comment(part):
            part = b"".join(self._rest_of(part))
        if self._sent is not None and part:
            self._size += len(part)
            self._sent.append(part)
            if self._size > MAX_SENT_BYTES:
                self._sent = None
        return part

    def again(self) -> None:
        """From now on the parts are those of a second answer, from its beginning."""
        assert self._sent is not None
        left: defaultdict[Key, str] = defaultdict(str)
        self._once, self._first, self._names, self._number = {}, None, {}, 0
        for event in self._shape.split(b"".join(self._sent)):
            if event is None:
                continue
            self._first = self._first or event
            self._number += 1
            key = self._shape.once(event)
            if key is not None:
                self._once[key] = event
            for place, where, name in self._shape.places(event):
                left[place] += where[name]
        self._left = left

    def _rest_of(self, part: bytes) -> Iterator[bytes]:
        assert self._left is not None
        shape = self._shape
        for event in shape.split(part):
            if event is None:
                yield b"data: [DONE]\n\n"
            elif "error" in event and event.get("type") in (None, "error"):
                yield shape.join(event)
            elif (key := shape.once(event)) is not None and key in self._once:
                if shape.renamed:
                    _pair(self._once[key], event, self._names)
            elif key is not None or _cut(event, self._left, shape):
                found = shape.fits(event, self._first, self._number)
                self._number += 1
                yield shape.join(_renamed(found, self._names) if self._names else found)


def _pair(first: Any, second: Any, names: dict[str, str]) -> None:
    """Note which identity of a second answer is which of the first."""
    if isinstance(first, dict) and isinstance(second, dict):
        for name, value in first.items():
            other = second.get(name)
            known = name == "id" or name.endswith("_id")
            if known and isinstance(value, str) and isinstance(other, str) and value != other:
                names[other] = value
            else:
                _pair(value, other, names)
    elif isinstance(first, list) and isinstance(second, list):
        for one, other in zip(first, second, strict=False):
            _pair(one, other, names)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {name: _renamed(one, names) for name, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    return value


_IDENTITIES = frozenset({"id"})
"""Names that every answer makes anew."""


def _cut(event: Event, left: dict[Key, str], shape: Shape) -> bool:
    """Take what was sent out of an event; whether anything is left of it.

    Raises:
        Rejection: it is not what was sent.
    """
    some = bool(event.get("usage"))
    places = list(shape.places(event))
    for key, where, name in places:
        text, sent = where[name], left.get(key, "")
        if not sent:
            some = some or bool(text)
            continue
        if key[-1] in _IDENTITIES or key[-1] == "role":
            left[key] = ""
            del where[name]
            continue
        common = min(len(sent), len(text))
        if sent[:common] != text[:common]:
            raise reject(
                502,
                "the target was lost within this answer, and another one answers differently; "
                "send the request again",
                code="target_lost",
            )
        left[key] = sent[common:]
        if common == len(text):
            where[name] = None if name == "finish_reason" else ""
        else:
            where[name] = text[common:]
            some = True
    if not some:
        return False
    for _, where, name in places:
        if where.get(name) == "" and name != "text":
            del where[name]
    return True
