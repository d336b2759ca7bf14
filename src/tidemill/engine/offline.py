"""InprocEngine: the engine for the offline API, blocking and without asyncio."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason
from tidemill.contract.wire import EngineInfo, EngineStats, Fatal, Outputs
from tidemill.engine.core import EngineCore, Message, open_core
from tidemill.engine.streams import resolve_seed


class InprocEngine:
    """A model in this process; `run` serves a batch of requests.

    Args:
        core: started; `close` stops it.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._id = core.connect(self._messages.put)
        self.stats = EngineStats()

    @classmethod
    def open(
        cls, config: EngineConfig, progress: Callable[[str], None] = lambda line: None
    ) -> InprocEngine:
        """Load a model. Raises TidemillError when it or the configuration cannot be used."""
        return cls(open_core(config, progress))

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved at its start."""
        return self._core.info

    def run(self, requests: Iterable[EngineRequest]) -> Iterator[ChoiceOutput]:
        """Submit all requests and yield their outputs as they come, until every choice has ended.

        Leaving the iterator early cancels what still runs.

        Raises:
            TidemillError: BAD_REQUEST for two requests of one id, UNAVAILABLE when the engine
                stops. Errors of single requests come as terminal outputs.
        """
        open_choices: dict[str, int] = {}
        batch = [resolve_seed(request) for request in requests]
        for request in batch:
            if request.request_id in open_choices:
                raise bad_request("request_id", f"{request.request_id!r} is there twice")
            open_choices[request.request_id] = request.sampling.n
        return self._outputs(batch, open_choices)

    def _outputs(
        self, batch: list[EngineRequest], open_choices: dict[str, int]
    ) -> Iterator[ChoiceOutput]:
        try:
            for request in batch:
                self._core.submit(self._id, request)
            while open_choices:
                message = self._messages.get()
                if isinstance(message, Fatal):
                    raise TidemillError(ErrorKind.UNAVAILABLE, message.message, retryable=True)
                if isinstance(message, Outputs):
                    self.stats = message.stats or self.stats
                    yield from self._known(message, open_choices)
        finally:
            for request_id in open_choices:
                self._core.cancel(self._id, request_id, None, FinishReason.CANCELLED)

    def _known(self, message: Outputs, open_choices: dict[str, int]) -> Iterator[ChoiceOutput]:
        """Outputs of this batch; an earlier batch that was left may still be saying goodbye."""
        for output in message.outputs:
            if output.request_id in open_choices:
                if output.finish_reason is not None:
                    open_choices[output.request_id] -= 1
                    if not open_choices[output.request_id]:
                        del open_choices[output.request_id]
                yield output

    def cancel(self, request_id: str, choice: int | None = None, reason: str = "cancelled") -> None:
        """Stop a request's choice (None: all) while `run` is being iterated."""
        self._core.cancel(self._id, request_id, choice, FinishReason(reason))

    def close(self) -> None:
        """Stop the engine and free the model."""
        self._core.close()
