"""Bodies of Anthropic's message batches."""

from __future__ import annotations

import re
from typing import Annotated, Any

from tidemill.server.dialects.members import Body, checked, wrong_value

MAX_REQUESTS = 100_000
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _check_custom_id(value: Any) -> None:
    if not _CUSTOM_ID.fullmatch(value):
        raise wrong_value("must have 1 to 64 letters, digits, _ and -")


def _check_params(value: Any) -> None:
    if value.get("stream"):
        raise wrong_value("stream: an answer in a batch is no stream; leave it out")


def _check_requests(value: Any) -> None:
    if not 1 <= len(value) <= MAX_REQUESTS:
        raise wrong_value(f"has {len(value)} entries; 1 to {MAX_REQUESTS} are taken")


class BatchedMessage(Body, kw_only=True):
    """One request of a batch: what POST /v1/messages takes, and a name for its result."""

    custom_id: Annotated[str, checked(_check_custom_id)]
    params: Annotated[dict[str, Any], checked(_check_params)]


class MessageBatchRequest(Body, kw_only=True):
    """Body of POST /v1/messages/batches."""

    requests: Annotated[list[BatchedMessage], checked(_check_requests)]

    def finalize(self) -> None:
        """Every name is its own."""
        seen: set[str] = set()
        for request in self.requests:
            if request.custom_id in seen:
                raise wrong_value(f"custom_id {request.custom_id!r} appears twice")
            seen.add(request.custom_id)
