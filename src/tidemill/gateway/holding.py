"""Requests that wait for an engine of a model whose engines come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tidemill.server.errors import reject

AFTER_SECONDS = 5
"""A client that finds the queue full is told to come back after this many."""


@dataclass(slots=True)
class Queue:
    """What is held of one model.

    Attributes:
        requests, prompt_tokens: held now; tokens as estimated.
    """

    requests: int = 0
    prompt_tokens: int = 0


class Holding:
    """Counts the held requests of each model, and bounds them."""

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}

    @property
    def queues(self) -> Mapping[str, Queue]:
        """Of models that were ever held for."""
        return self._queues

    @contextmanager
    def hold(self, model: str, prompt_tokens: int, most: int) -> Iterator[None]:
        """Hold a request inside.

        Raises:
            Rejection: 429; `most` requests are held already.
        """
        queue = self._queues.setdefault(model, Queue())
        if queue.requests >= most:
            raise reject(
                429,
                f"{most} requests wait for an engine of the model {model!r} already "
                "(scaled.max_held); try again later",
                code="overloaded",
                headers={"Retry-After": str(AFTER_SECONDS)},
            )
        queue.requests += 1
        queue.prompt_tokens += prompt_tokens
        try:
            yield
        finally:
            queue.requests -= 1
            queue.prompt_tokens -= prompt_tokens
