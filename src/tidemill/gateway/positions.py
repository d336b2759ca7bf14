"""A stream of a Tidemill server with its marks (`contract.position`): what may go to the client,
and from where another server goes on.

Parts wait for the mark behind them, which comes with them; what has none when the stream breaks off
was not sent, and the next server says it again.
"""

from __future__ import annotations

from tidemill.contract.position import COMMENT, MEMBER, Position, encoder, mark_decoder

MAX_MARKS_BYTES = 16 << 20
"""Of an answer that can be gone on with."""


class Positions:
    """See the module docstring.

    Args:
        events: the stream is one of events; else of lines.
    """

    def __init__(self, *, events: bool) -> None:
        self._start = COMMENT if events else MEMBER
        self._end = b"\n\n" if events else b"\n"
        self._closing = 0 if events else 1  # a brace
        self._marks: list[bytes] = []
        self._size = 0
        self._waiting: list[bytes] = []  # parts without a mark
        self._told = True  # the server marks its answer

    @property
    def possible(self) -> bool:
        """Another server can go on: all that the client has is marked."""
        return self._told

    @property
    def moved(self) -> bool:
        """The server ended its answer so that another one goes on with it."""
        return bool(self._marks) and b'"moved":true' in self._marks[-1]

    @property
    def waiting(self) -> bytes:
        """What has no mark yet."""
        return b"".join(self._waiting)

    def position(self) -> bytes:
        """What the next server is told; empty: the answer has not begun."""
        found = Position()
        for mark in self._marks:
            found.add(mark_decoder.decode(mark))
        return b"" if found.begun is None else encoder.encode(found)

    def again(self) -> None:
        """From now on the parts are another server's."""
        self._waiting.clear()

    def feed(self, part: bytes) -> bytes:
        """Whole events or lines; those that the client gets."""
        if not self._told:
            return part
        at = 0
        while (found := self._find(part, at)) >= 0:
            if found > at:
                self._waiting.append(part[at:found])
            ends = part.index(self._end, found)
            self._take(part[found + len(self._start) : ends - self._closing])
            at = ends + len(self._end)
        if not at:
            return self._unmarked(part)
        out = b"".join(self._waiting)
        self._waiting.clear()
        if at < len(part):
            self._waiting.append(part[at:])
        return out

    def rest(self) -> bytes:
        """What waits still, once the stream has ended well."""
        out = b"".join(self._waiting)
        self._waiting.clear()
        return out

    def _find(self, part: bytes, at: int) -> int:
        """Where a mark begins: at the begin of an event or line, never in a text."""
        while (found := part.find(self._start, at)) >= 0:
            if found == 0 or part[found - 1] == 10:
                return found
            at = found + 1
        return -1

    def _take(self, mark: bytes) -> None:
        self._marks.append(mark)
        self._size += len(mark)
        if self._size > MAX_MARKS_BYTES:
            self._marks.clear()
            self._told = False

    def _unmarked(self, part: bytes) -> bytes:
        if self._marks or not self._waiting:
            self._waiting.append(part)
            return b""
        # A second part without a mark: answers of its kind have none (pipelines, beam search).
        self._told = False
        return self.rest() + part
