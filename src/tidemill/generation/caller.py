"""Who sends a request, and until when its answer is of use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request, and the request's deadline.

    Attributes:
        client, weight: the unit of fairness and its share.
        cache_salt: prefixes are shared only between equal salts.
        deadline: `base.clock.monotonic` time in seconds at which the request expires; or None.
        priority: among one client's requests, smaller values run first.
        user: whom the client asks for, as it says; "" where it says nothing.
        background: the answer may wait for capacity that no other request wants.
    """

    client: str = ""
    weight: float = 1.0
    cache_salt: str = ""
    deadline: float | None = None
    priority: int = 0
    user: str = ""
    background: bool = False


ANONYMOUS = Caller()
