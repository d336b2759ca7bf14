"""W3C trace context: the trace that a request belongs to, as its headers and its children tell it.

https://www.w3.org/TR/trace-context/ and https://www.w3.org/TR/baggage/. What is malformed is
ignored, as these want it: a request is never refused for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import NamedTuple

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(
    r"(?:[a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MOST_MEMBERS = 32
_MOST_BAGGAGE = 8192
_SAMPLED = 1


class TraceContext(NamedTuple):
    """A span as its children know it.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        flags: of W3C: bit 0: it is sampled.
        state: `tracestate` as it came.
        baggage: as it came.
        parent_id: of the span that began this one; empty: none did, or it is not known.
    """

    trace_id: str
    span_id: str
    flags: int = 0
    state: str = ""
    baggage: str = ""
    parent_id: str = ""

    @property
    def sampled(self) -> bool:
        """Its spans are recorded."""
        return bool(self.flags & _SAMPLED)

    def headers(self) -> dict[str, str]:
        """Of a request that continues it."""
        found = {TRACEPARENT: f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"}
        if self.state:
            found[TRACESTATE] = self.state
        if self.baggage:
            found[BAGGAGE] = self.baggage
        return found


current: ContextVar[TraceContext | None] = ContextVar("trace_context", default=None)
"""Of the request that is being answered; None: nobody traces it."""


def trace_context(values: Callable[[str], Sequence[str]]) -> TraceContext | None:
    """The context that a request came with; None where it has none, or one that is malformed.

    Args:
        values: of a header.
    """
    parents = values(TRACEPARENT)
    if len(parents) != 1:
        return None
    found = _PARENT.fullmatch(parents[0].strip(" \t"))
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if (
        version == "ff"
        or (version == "00" and more)
        or not (int(trace_id, 16) and int(span_id, 16))
    ):
        return None
    bits = int(flags, 16) & (3 if version == "00" else _SAMPLED)
    baggage = ",".join(values(BAGGAGE))
    return TraceContext(
        trace_id,
        span_id,
        bits,
        _state(",".join(values(TRACESTATE))),
        baggage if len(baggage) <= _MOST_BAGGAGE and _plain(baggage) else "",
    )


def _state(text: str) -> str:
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    valid = len(members) <= _MOST_MEMBERS and len(keys) == len(members)
    return ",".join(members) if valid and all(map(_MEMBER.fullmatch, members)) else ""


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
