"""The input of a custom tool's call, out of the JSON text in which the model writes it.

The model is shown a function with the argument `input` and writes ``{"input": "..."}``; the client
gets the string's value, piece by piece where the text is certain to be that.
"""

from __future__ import annotations

import json
import re

from tidemill.server.dialects.openai.responses.tools import INPUT

_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_PIECE = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class InputText:
    """A custom tool's input as it grows.

    Attributes:
        text: known so far.
    """

    def __init__(self) -> None:
        self._raw = ""  # not decoded yet
        self._all: list[str] = []
        self._texts: list[str] = []
        self._inside: bool | None = None  # None: before the string; False: behind it

    @property
    def text(self) -> str:
        """The input so far."""
        return "".join(self._texts)

    def push(self, part: str) -> str:
        """Add JSON text; return what it adds to the input."""
        self._all.append(part)
        self._raw += part
        if self._inside is None:
            head = _HEAD.match(self._raw)
            if head is None:
                return ""
            self._inside, self._raw = True, self._raw[head.end() :]
        if not self._inside:
            return ""
        match = _PIECE.match(self._raw)
        assert match is not None
        piece, rest = match[0], self._raw[match.end() :]
        half = _HALF.search(piece)
        if half and not rest.startswith('"'):  # the other half of a character is to come
            piece, rest = piece[: half.start()], piece[half.start() :] + rest
        if rest.startswith('"'):
            self._inside = False
        self._raw = rest
        return self._add(piece)

    def finish(self) -> str:
        """End; return the rest of the input, which is all of it where the arguments were not
        enforced and have another form."""
        if self._inside is not None:
            return ""
        whole = "".join(self._all)
        try:
            arguments = json.loads(whole)
        except ValueError:
            return self._take(whole)
        if isinstance(arguments, dict):
            if isinstance(arguments.get(INPUT), str):
                return self._take(arguments[INPUT])
            values = list(arguments.values())
            if len(values) == 1 and isinstance(values[0], str):
                return self._take(values[0])
        return self._take(whole)

    def _add(self, piece: str) -> str:
        if not piece:
            return ""
        text: str = json.loads(f'"{piece}"', strict=False)
        return self._take(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def _take(self, text: str) -> str:
        self._texts.append(text)
        return text
