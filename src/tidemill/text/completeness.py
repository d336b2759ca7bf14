"""The check that a chat template left out nothing of what somebody said (promise 2).

A text that stands in the prompt need not have come from its own message: a short one stands in
others, in the tools' descriptions or in the template itself. So a text that could have come from
elsewhere is marked, with a word that occurs nowhere, and the conversation is rendered once more:
where the marks come out, the text was written. The same tells a text that the template rewrites
(`/no_think` in a system message) from one that it drops.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import TidemillError, bad_request
from tidemill.text.bounds import BudgetExceeded

# A template may rewrite earlier answers (cut their thinking); what others said must be there.
_MUST_APPEAR = frozenset({"system", "developer", "user", "tool"})
_SHORT = 4
# Characters read in search of texts that occur twice; beyond, a second rendering takes less time.
_MAX_SEARCH = 2**22

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text that must appear.

    Attributes:
        param: names it in an error.
        text: what was said.
        path: where it stands in `[messages, documents]`.
    """

    param: str
    text: str
    path: tuple[int | str, ...]


def check_complete(
    messages: Sequence[Mapping[str, Any]],
    prompt: str,
    render: Render,
    *,
    documents: Sequence[Mapping[str, Any]] = (),
    beside: object = (),
) -> None:
    """Raise if the template left out what somebody said.

    Args:
        messages: as they were given to the template.
        prompt: what it made of them.
        render: renders other messages and documents in the same way.
        documents: that were given to it as well; of these the member `text` must be there.
        beside: texts, or lists and mappings of such, that can stand in the prompt as well: the
            template, the tools.

    Raises:
        TidemillError: kind BAD_REQUEST naming the message or document.
    """
    pieces = [*_of_messages(messages), *_of_documents(documents)]
    texts = "\0".join(_texts([messages, documents, beside]))
    if len(pieces) * len(texts) <= _MAX_SEARCH:
        doubtful = [p for p in pieces if not (_appears(p.text, prompt) and _once(p.text, texts))]
    else:
        doubtful = pieces
    if doubtful:
        _check_marked(doubtful, [list(messages), list(documents)], texts + prompt, prompt, render)


def _check_marked(
    pieces: Sequence[_Piece], given: list[Any], known: str, prompt: str, render: Render
) -> None:
    word = next(w for w in map("mark{}x".format, range(len(known))) if w not in known)
    marked = copy.deepcopy(given)
    for index, piece in enumerate(pieces):
        _mark(marked, piece.path, f"{word}{index}a", f"{word}{index}z")
    try:
        written = render(*marked)
    except TidemillError as error:
        if isinstance(error.__cause__, BudgetExceeded):
            raise
        written = None  # it takes no such texts: what it wrote at first has to tell
    for index, piece in enumerate(pieces):
        if written is None:
            found = _appears(piece.text, prompt)
        else:
            found = f"{word}{index}a" in written and f"{word}{index}z" in written
        if not found:
            raise bad_request(
                piece.param,
                f"the model's chat template drops {piece.param}{_described(piece, given[0])}",
            )


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
            path = (0, index, "tool_calls", place, "function", "name")
            yield _Piece(f"{at}.tool_calls[{place}]", call["function"]["name"], path)
        # A tool's name is its call's, which stands in the prompt where the call does.
        if role != "tool" and "name" in message:
            yield from _piece(f"{at}.name", message["name"], (0, index, "name"))


def _of_documents(documents: Sequence[Mapping[str, Any]]) -> Iterator[_Piece]:
    for index, document in enumerate(documents):
        if isinstance(document.get("text"), str):
            yield from _piece(f"documents[{index}]", document["text"], (1, index, "text"))


def _piece(param: str, text: object, path: tuple[int | str, ...]) -> Iterator[_Piece]:
    if isinstance(text, str) and text.strip():
        yield _Piece(param, text.strip(), path)


def _mark(root: Any, path: tuple[int | str, ...], before: str, behind: str) -> None:
    *way, last = path
    for step in way:
        root = root[step]
    root[last] = f"{before}{root[last]}{behind}"


def _once(text: str, texts: str) -> bool:
    """It occurs once, as itself, and is too long to come about by chance."""
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
