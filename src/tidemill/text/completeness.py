"""Verifies that a chat template drops no message text (promise 2).

A text found in the prompt need not come from its own message: a short one may also occur in other
messages, in the tools' descriptions or in the template. Such ambiguous texts are wrapped in marks
that occur nowhere else, and the conversation is rendered a second time. A text was rendered if its
marks appear. The marks also distinguish a text that the template rewrites (`/no_think` in a system
message) from one that it drops.

What a template drops depends on the conversation's shape: roles, calls, which contents are empty,
variables. A shape that passed the second rendering is remembered and not rendered twice again, so
an agent's long conversations cost one rendering each.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.errors import TidemillError, bad_request
from tidemill.text.bounds import BudgetExceeded

# A template may rewrite earlier answers (cut their thinking); all other texts must be rendered.
_MUST_APPEAR = frozenset({"system", "developer", "user", "tool"})
_SHORT = 4
# Characters searched for texts; beyond this a second rendering is faster.
_MAX_SEARCH = 2**26
_MAX_SHAPES = 4096

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
Path = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text that must appear in the prompt.

    Attributes:
        param: its field, for errors.
        text: the text.
        path: its path in `[messages, documents]`.
    """

    param: str
    text: str
    path: Path


@dataclass(slots=True)
class KnownShapes:
    """Digests of the conversation shapes that a template renders completely."""

    digests: set[bytes] = field(default_factory=set)

    def add(self, digest: bytes) -> None:
        if len(self.digests) >= _MAX_SHAPES:
            self.digests.clear()
        self.digests.add(digest)


def check_complete(
    messages: Sequence[Mapping[str, Any]],
    prompt: str,
    render: Render,
    *,
    documents: Sequence[Mapping[str, Any]] = (),
    source: str = "",
    variables: Mapping[str, Any] | None = None,
    known: KnownShapes | None = None,
) -> None:
    """Raise if the template dropped a text.

    Args:
        messages: as passed to the template.
        prompt: as the template rendered them.
        render: renders other messages and documents with the same variables.
        documents: as passed to the template; their member `text` must be rendered.
        source: the template.
        variables: all other variables passed to the template.
        known: the template's known shapes; a new one is added.

    Raises:
        TidemillError: kind BAD_REQUEST naming the message or document.
    """
    pieces = [*_of_messages(messages), *_of_documents(documents)]
    texts = "\0".join(_texts([messages, documents, source, variables]))
    if len(pieces) * max(len(texts), len(prompt)) > _MAX_SEARCH:
        _check_marked(pieces, messages, documents, texts + prompt, prompt, render)
        return
    missing = [p for p in pieces if not _appears(p.text, prompt)]
    doubtful = [p for p in pieces if not _once(p.text, texts)]
    if not missing and not doubtful:
        return
    shape = _shape(messages, documents, variables or {})
    if missing or known is None or shape not in known.digests:
        _check_marked([*missing, *doubtful], messages, documents, texts + prompt, prompt, render)
        if known is not None:
            known.add(shape)


def _check_marked(
    pieces: Sequence[_Piece],
    messages: Sequence[Mapping[str, Any]],
    documents: Sequence[Mapping[str, Any]],
    texts: str,
    prompt: str,
    render: Render,
) -> None:
    word = next(w for w in map("mark{}x".format, range(len(texts) + 1)) if w not in texts)
    marks = {piece.path: (f"{word}{i}a", f"{word}{i}z") for i, piece in enumerate(pieces)}
    try:
        written = render(*_marked([list(messages), list(documents)], marks))
    except TidemillError as error:
        if isinstance(error.__cause__, BudgetExceeded):
            raise
        written = None  # the template rejects marked texts: search the first rendering instead
    found = set() if written is None else set(re.findall(rf"{word}\d+[az]", written))
    for piece in pieces:
        if written is None:
            kept = _appears(piece.text, prompt)
        else:
            kept = found.issuperset(marks[piece.path])
        if not kept:
            raise bad_request(
                piece.param,
                f"the model's chat template drops {piece.param}{_described(piece, messages)}",
            )


def _marked(value: Any, marks: Mapping[Path, tuple[str, str]]) -> Any:
    """A copy of a value with marks around the texts at some paths; the rest is shared."""
    if () in marks:
        before, behind = marks[()]
        return f"{before}{value}{behind}"
    inner: dict[int | str, dict[Path, tuple[str, str]]] = {}
    for path, around in marks.items():
        inner.setdefault(path[0], {})[path[1:]] = around
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    for step, further in inner.items():
        copy[step] = _marked(value[step], further)
    return copy


def _shape(
    messages: Sequence[Mapping[str, Any]],
    documents: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> bytes:
    """A digest of everything a template can branch on, except the texts themselves."""
    outline = [
        (
            m["role"],
            len(m["content"]) if isinstance(m["content"], list) else bool(m["content"]),
            [*m],
            len(m.get("tool_calls", ())),
        )
        for m in messages
    ]
    scalars = {
        name: value if isinstance(value, bool | int | str | None) else type(value).__name__
        for name, value in variables.items()
    }
    shape = repr((outline, len(documents), scalars))
    return hashlib.blake2b(shape.encode(errors="replace"), digest_size=16).digest()


def _described(piece: _Piece, messages: Sequence[Mapping[str, Any]]) -> str:
    place, *rest = piece.path
    if place != 0 or rest[1] != "content":
        return ""
    role = messages[int(rest[0])]["role"]
    return f" (role {role}); merge its content into a message the template keeps"


def _of_messages(messages: Sequence[Mapping[str, Any]]) -> Iterator[_Piece]:
    for index, message in enumerate(messages):
        at, role = f"messages[{index}]", message["role"]
        content = message["content"]
        if role in _MUST_APPEAR and isinstance(content, str):
            yield from _piece(at, content, (0, index, "content"))
        elif role in _MUST_APPEAR and content is not None:
            for place, part in enumerate(content):
                yield from _piece(at, part["text"], (0, index, "content", place, "text"))
        for place, call in enumerate(message.get("tool_calls", ())):
            path: Path = (0, index, "tool_calls", place, "function", "name")
            yield _Piece(f"{at}.tool_calls[{place}]", call["function"]["name"], path)
        # A tool message's name is that of its call, which the template renders with the call.
        if role != "tool" and "name" in message:
            yield from _piece(f"{at}.name", message["name"], (0, index, "name"))


def _of_documents(documents: Sequence[Mapping[str, Any]]) -> Iterator[_Piece]:
    for index, document in enumerate(documents):
        if isinstance(document.get("text"), str):
            yield from _piece(f"documents[{index}]", document["text"], (1, index, "text"))


def _piece(param: str, text: object, path: Path) -> Iterator[_Piece]:
    if isinstance(text, str) and text.strip():
        yield _Piece(param, text.strip(), path)


def _once(text: str, texts: str) -> bool:
    """The text occurs only once among all texts, and is too long for a chance match."""
    return len(text) >= _SHORT and texts.find(text, texts.find(text) + 1) < 0


def _texts(value: object) -> Iterator[str]:
    """The strings in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _texts(key)
            yield from _texts(member)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _appears(text: str, prompt: str) -> bool:
    # Templates may write a tool's answer as a JSON string.
    return text in prompt or any(
        json.dumps(text, ensure_ascii=ascii_only)[1:-1] in prompt for ascii_only in (False, True)
    )
