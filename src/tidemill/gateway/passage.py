"""What happens to the parts of one streamed answer on their way: no waiting in here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from tidemill.contract.position import COMMENT
from tidemill.gateway.framed import Ends, Whole, is_comment, without_usage
from tidemill.gateway.positions import Positions
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
        continues = opened.route.target.continues
        self._positions = Positions(events=self._events) if continues else None
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
        waiting = b"" if self._positions is None else self._positions.waiting
        last = self.ends.text + waiting + self._whole.held
        if b"[DONE]" in last or b'"error"' in last:
            return True
        # Not every other server says [DONE]; that it says why it finished is enough.
        return self._positions is None and _FINISHED.search(last) is not None

    @property
    def may_go_on(self) -> bool:
        """Another engine can go on with the answer."""
        return self._positions is not None and self._positions.possible

    @property
    def moved(self) -> bool:
        """The target ended its answer so that another one goes on with it."""
        return self._positions is not None and self._positions.moved

    def again(self) -> bytes:
        """The parts are from now on another engine's, that goes on from the returned position."""
        assert self._positions is not None
        self._whole = Whole(events=self._events)
        self._positions.again()
        return self._positions.position()

    def feed(self, data: bytes) -> bytes:
        """Bytes have come; those that the client gets."""
        part = self._whole.feed(data)
        if not part:
            return b""
        if is_comment(part) and COMMENT not in part:
            return self._out(part)
        if self._positions is not None:
            part = self._positions.feed(part)
            if not part:
                return b""
        self.ends.note(part)
        return self._out(part)

    def rest(self) -> bytes:
        """The last ones, once the stream has ended well."""
        part = self._whole.rest()
        if self._positions is not None:
            part = self._positions.rest() + part
            self.ends.note(part)
        out = self._out(part)
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
