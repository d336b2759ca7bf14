"""What happens to the parts of one streamed answer on their way: no waiting in here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from tidemill.gateway.continued import Continuation, continues
from tidemill.gateway.framed import Ends, Whole, is_comment, without_usage
from tidemill.gateway.shapes import SHAPES
from tidemill.gateway.wire.kinds import CHAT

if TYPE_CHECKING:
    from tidemill.gateway.asked import Asked
    from tidemill.gateway.opened import Opened


MARKED = frozenset({CHAT, "/v1/completions"})
"""Paths whose streams end with an event that says so."""


_FINISHED = re.compile(rb'"finish_reason": ?"')


class Passage:
    """See the module docstring.

    Args:
        asked: what the client asked for.
        opened: the answer.

    Attributes:
        ends: first and last parts, where the target says what was used.
    """

    def __init__(self, asked: Asked, opened: Opened) -> None:
        self.ends = Ends()
        self._events = b"event-stream" in opened.content_type
        self._whole = Whole(events=self._events)
        self._sent = Continuation(SHAPES[asked.path]) if continues(opened) else None
        self._made = opened.translator
        self._marked = asked.path in MARKED and self._made is None and self._events
        self._strips = asked.path == CHAT and self._made is None and not _wants_usage(asked)
        answered = opened.route.asked.model
        self._note = b"" if answered == asked.model else fallback_note(asked.model, answered)

    @property
    def whole(self) -> bool:
        """The stream has come to its own end, as far as its dialect marks one: a target that ends
        between two of its parts may close its connection as if that had been all."""
        if not self._marked:
            return True
        last = self.ends.text + self._whole.held
        if b"[DONE]" in last or b'"error"' in last:
            return True
        # Not every other server says [DONE]; that it says why it finished is enough.
        return self._sent is None and _FINISHED.search(last) is not None

    @property
    def may_go_on(self) -> bool:
        """Another engine can go on with the answer."""
        return self._sent is not None and self._sent.possible

    def again(self) -> None:
        """The parts are from now on another engine's, from its answer's beginning."""
        assert self._sent is not None
        self._whole = Whole(events=self._events)
        self._sent.again()

    def feed(self, data: bytes) -> bytes:
        """Bytes have come; those that the client gets.

        Raises:
            Rejection: another engine answers differently.
        """
        part = self._whole.feed(data)
        if not part:
            return b""
        if not is_comment(part):
            self.ends.note(part)
        if self._sent is not None:
            part = self._sent.take(part)
        return self._out(part)

    def rest(self) -> bytes:
        """The last ones, once the stream has ended well."""
        out = self._out(self._whole.rest())
        return out if self._made is None else out + self._made.end()

    def _out(self, part: bytes) -> bytes:
        if self._made is not None:
            part = self._made.feed(part) if part else b""
        elif self._strips:
            part = without_usage(part)
        if self._note and b"{" in part:
            part, self._note = noted(part, self._note), b""
        return part


def fallback_note(asked: str, answered: str) -> bytes:
    """The member that says that another model answers."""
    value = msgspec.json.encode({"asked": asked, "answered": answered})
    return b'"tidemill_fallback":' + value


def noted(data: bytes, note: bytes) -> bytes:
    """An answer's beginning with a further member in its first object."""
    comma = b"" if data.partition(b"{")[2].lstrip().startswith(b"}") else b","
    return data.replace(b"{", b"{" + note + comma, 1)


def _wants_usage(asked: Asked) -> bool:
    options = asked.members.get("stream_options")
    return options is not None and b'"include_usage":true' in bytes(options).replace(b" ", b"")
