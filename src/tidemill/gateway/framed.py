"""Streams cut between their events, so that what is added to one is an event of its own."""

from __future__ import annotations

from collections import deque

_ENDS = (b"\n\n", b"\r\n\r\n")


class Whole:
    """Holds back what is not yet a whole event.

    Args:
        events: server-sent events; else lines.
    """

    def __init__(self, *, events: bool) -> None:
        self._ends = _ENDS if events else (b"\n",)
        self._held = b""

    @property
    def held(self) -> bytes:
        """What is held back."""
        return self._held

    def feed(self, data: bytes) -> bytes:
        """Bytes have come; what of all is whole."""
        if self._held:
            data, self._held = self._held + data, b""
        if data.endswith(self._ends):
            return data
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in self._ends)
        self._held = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        """What is left at the end."""
        rest, self._held = self._held, b""
        return rest


class Ends:
    """The first part and the last ones of a stream, where servers say what was used."""

    def __init__(self) -> None:
        self.first = b""
        self._last: deque[bytes] = deque(maxlen=6)
        self.parts = 0

    def note(self, data: bytes) -> None:
        """A part went by."""
        if not self.parts:
            self.first = data
        self.parts += 1
        self._last.append(data)

    @property
    def text(self) -> bytes:
        """First and last parts."""
        return self.first + b"".join(self._last)


def is_comment(data: bytes) -> bool:
    """Whether a part of a stream of events holds none: it keeps the connection alive."""
    return data.startswith(b":") and b"data:" not in data


def without_usage(data: bytes) -> bytes:
    """Whole events of chat completions without those that hold nothing but the usage, which the
    gateway asked for and the client did not."""
    if b'"choices":[]' not in data and b'"choices": []' not in data:
        return data
    events = data.replace(b"\r\n", b"\n").split(b"\n\n")
    kept = [
        event
        for event in events
        if not ((b'"choices":[]' in event or b'"choices": []' in event) and b'"usage"' in event)
    ]
    return b"\n\n".join(kept)
