"""What clients call their requests (`X-Request-ID`), by the ids that engines know them by."""

from __future__ import annotations

MOST = 4096
"""That are remembered: of requests whose prompts nobody asked about, the oldest are forgotten."""


class RequestNames:
    """See the module docstring."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def note(self, request_id: str, name: str) -> None:
        """A request has begun."""
        self._names[request_id] = name
        if len(self._names) > MOST:
            del self._names[next(iter(self._names))]

    def of(self, request_id: str) -> str:
        """What its client calls a request; empty: it is not known."""
        return self._names.get(request_id, "")
