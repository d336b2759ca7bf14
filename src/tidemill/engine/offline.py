"""InprocEngine: the engine of the offline API; blocking, without asyncio."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import (
    AdapterUse,
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    exception_of,
)
from tidemill.contract.wire import (
    AdapterInfo,
    CheckAdapter,
    CheckedAdapter,
    DropAdapter,
    EngineInfo,
    EngineStats,
    Fatal,
    Outputs,
)
from tidemill.engine.core import EngineCore, Message, open_core
from tidemill.engine.streams import resolve_seed


class InprocEngine:
    """A model in this process; `run` serves a batch of requests.

    Args:
        core: started; `close` stops it.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._clients: dict[str, int] = {}  # of the requests that are being run
        self.stats = EngineStats()

    @classmethod
    def open(
        cls, config: EngineConfig, progress: Callable[[str], None] = lambda line: None
    ) -> InprocEngine:
        """Load a model. Raises TidemillError if it or the configuration cannot be used."""
        return cls(open_core(config, progress))

    @property
    def info(self) -> EngineInfo:
        """The properties that the engine resolved at its start."""
        return self._core.info

    def run(self, requests: Iterable[EngineRequest]) -> Iterator[ChoiceOutput]:
        """Submit all requests and yield their outputs as they come, until every choice has ended.

        Leaving the iterator early cancels the unfinished requests. Several threads may run batches
        concurrently.

        Raises:
            TidemillError: BAD_REQUEST for duplicate request ids, UNAVAILABLE if the engine stops.
                An error of a single request is in its final output.
        """
        open_choices: dict[str, int] = {}
        batch = [resolve_seed(request) for request in requests]
        for request in batch:
            if request.request_id in open_choices:
                raise bad_request("request_id", f"{request.request_id!r} is a duplicate id")
            open_choices[request.request_id] = request.sampling.n
        return self._outputs(batch, open_choices)

    def _outputs(
        self, batch: list[EngineRequest], open_choices: dict[str, int]
    ) -> Iterator[ChoiceOutput]:
        # One client per batch, so that concurrent batches do not read each other's messages.
        messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        client = self._core.connect(messages.put)
        try:
            for request in batch:
                self._clients[request.request_id] = client
                self._core.submit(client, request)
            while open_choices:
                message = messages.get()
                if isinstance(message, Fatal):
                    if message.error is not None:
                        raise exception_of(message.error)
                    raise TidemillError(ErrorKind.UNAVAILABLE, message.message, retryable=True)
                if isinstance(message, Outputs):
                    self.stats = message.stats or self.stats
                    yield from self._known(message, open_choices)
        finally:
            self._core.disconnect(client)  # cancels what is left
            for request in batch:
                self._clients.pop(request.request_id, None)

    def _known(self, message: Outputs, open_choices: dict[str, int]) -> Iterator[ChoiceOutput]:
        for output in message.outputs:
            if output.finish_reason is not None:
                open_choices[output.request_id] -= 1
                if not open_choices[output.request_id]:
                    del open_choices[output.request_id]
            yield output

    def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """Verify an adapter against the model and keep it in memory while there is room.

        Raises:
            TidemillError: why it cannot be used.
        """
        messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        client = self._core.connect(messages.put)
        try:
            self._core.check_adapter(client, CheckAdapter(0, use))
            while not isinstance(message := messages.get(), CheckedAdapter):
                if isinstance(message, Fatal):
                    raise TidemillError(ErrorKind.UNAVAILABLE, message.message, retryable=True)
        finally:
            self._core.disconnect(client)
        if message.adapter is None:
            raise exception_of(message.error)
        return message.adapter

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter once no request uses it."""
        self._core.drop_adapter(DropAdapter(digest))

    def cancel(self, request_id: str, choice: int | None = None, reason: str = "cancelled") -> None:
        """Stop a request's choice (None: all) while `run` is being iterated."""
        client = self._clients.get(request_id)
        if client is not None:
            self._core.cancel(client, request_id, choice, FinishReason(reason))

    def close(self) -> None:
        """Stop the engine and free the model."""
        self._core.close()
