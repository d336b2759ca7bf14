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

import msgspec

from tidemill.gateway.asked import Asked
from tidemill.gateway.wire.kinds import CHAT
from tidemill.server.errors import reject

if TYPE_CHECKING:
    from tidemill.gateway.opened import Opened

MAX_SENT_BYTES = 4 << 20
"""Of an answer that can be gone on with."""

_PATHS = frozenset({CHAT, "/v1/completions"})
_PER_TOKEN = ("logprobs", "top_logprobs", "return_token_ids", "prompt_logprobs", "echo")
"""Members whose answers have more than texts for each token."""

Key = tuple[Any, ...]


def seeded(asked: Asked, random: Random) -> Asked:
    """A request whose tokens are decided: with a seed, where it streams and has none."""
    if not (asked.stream and asked.path in _PATHS):
        return asked
    if bytes(asked.members.get("seed", b"null")).strip() != b"null":
        return asked
    return replace(asked, seed=random.getrandbits(31))


def continues(opened: Opened) -> bool:
    """Whether another engine can go on with an answer."""
    asked = opened.route.asked
    plain = all(
        bytes(asked.members.get(name, b"null")).strip() in (b"null", b"false", b"0")
        for name in _PER_TOKEN
    )
    return opened.route.target.kind.continues and asked.path in _PATHS and plain


class Continuation:
    """What the client has of an answer; its parts pass through `take`.

    Args:
        opened: the answer.
    """

    def __init__(self, opened: Opened) -> None:
        self._sent: list[bytes] | None = []
        self._size = 0
        self._left: dict[Key, str] | None = None  # while a second answer repeats what was sent
        self._envelope: dict[str, Any] = {}

    @property
    def possible(self) -> bool:
        """It is known what was sent."""
        return self._sent is not None

    def take(self, part: bytes) -> bytes:
        """A part of the answer as the client gets it.

        Raises:
            Rejection: it is not the answer that was begun.
        """
        if self._left is not None:
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
        for event in _events(b"".join(self._sent)):
            if isinstance(event, dict):
                self._envelope = self._envelope or {
                    name: event[name] for name in ("id", "created") if name in event
                }
                for key, text in _texts(event):
                    left[key] += text
        self._left = left

    def _rest_of(self, part: bytes) -> Iterator[bytes]:
        assert self._left is not None
        for event in _events(part):
            if not isinstance(event, dict):
                yield b"data: [DONE]\n\n"
            elif "error" in event:
                yield b"data: " + msgspec.json.encode(event) + b"\n\n"
            elif _cut(event, self._left):
                yield b"data: " + msgspec.json.encode({**event, **self._envelope}) + b"\n\n"


def _events(data: bytes) -> Iterator[Any]:
    """Decoded events; None: the end."""
    for event in data.replace(b"\r\n", b"\n").split(b"\n\n"):
        text = b"".join(
            line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")
        )
        if text == b"[DONE]":
            yield None
        elif text:
            yield msgspec.json.decode(text)


def _places(event: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any], str]]:
    """Every text that grows over the events of one answer: its key, and where it stands."""
    for choice in event.get("choices", ()):
        index = choice.get("index", 0)
        if isinstance(choice.get("text"), str):
            yield (index, "text"), choice, "text"
        delta = choice.get("delta") or {}
        for name, value in delta.items():
            if isinstance(value, str):
                yield (index, name), delta, name
        for call in delta.get("tool_calls") or ():
            place = (index, "call", call.get("index", 0))
            function = call.get("function") or {}
            for name in ("name", "arguments"):
                if isinstance(function.get(name), str):
                    yield (*place, name), function, name
            for name in ("id", "type"):
                if isinstance(call.get(name), str):
                    yield (*place, name), call, name
        if isinstance(choice.get("finish_reason"), str):
            yield (index, "finish"), choice, "finish_reason"


def _texts(event: dict[str, Any]) -> Iterator[tuple[Key, str]]:
    for key, where, name in _places(event):
        yield key, where[name]


_IDENTITIES = frozenset({"id"})
"""Names that every answer makes anew."""


def _cut(event: dict[str, Any], left: dict[Key, str]) -> bool:
    """Take what was sent out of an event; whether anything is left of it.

    Raises:
        Rejection: it is not what was sent.
    """
    some = "usage" in event and bool(event["usage"])
    places = list(_places(event))
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
