"""Prompts that this engine computes for others, which fetch their blocks (disaggregated prefill).

Each is a request of a client of its own, whose one token nobody reads. What the other engine says
that the blocks are called is compared with what they are called here before anything is computed:
another model, salt, type or text has other names.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError
from tidemill.base.ids import new_id
from tidemill.contract.moves import Name, PeerLoad, PrefillPrompt
from tidemill.contract.request import EngineRequest, FinishReason
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import Fatal, Outputs
from tidemill.memory.prefix import block_key

if TYPE_CHECKING:
    from tidemill.engine.core import EngineCore, Message

MOST = 64
"""At a time."""


class Prefill:
    """A prompt that is computed; see `transfer.serving.Prefill`."""

    def __init__(self, service: PrefillService, request_id: str, wake: Callable[[], None]) -> None:
        self.ended = False
        self.wake = wake
        self._service = service
        self._request_id = request_id

    def cancel(self) -> None:
        """Nobody waits for it."""
        self._service.cancel(self._request_id)


class PrefillService:
    """See the module docstring, and `transfer.serving.Prefills`. For any thread.

    Args:
        core: of this engine.
        root: of a salt: the digest that a sequence's hash chain begins with.
        load: what the engine has to do.
    """

    def __init__(
        self, core: EngineCore, root: Callable[[str], bytes], load: Callable[[], PeerLoad]
    ) -> None:
        self.load = load
        self._core = core
        self._root = root
        self._client = core.connect(self._take)
        self._lock = threading.Lock()
        self._open: dict[str, Prefill] = {}

    def begin(
        self, names: tuple[Name, ...], prompt: PrefillPrompt, wake: Callable[[], None]
    ) -> Prefill | None:
        """See `transfer.serving.Prefills`."""
        tokens = self._tokens(names, prompt.salt)
        if tokens is None or not prompt.weight > 0.0:
            return None
        request = EngineRequest(
            request_id=new_id("prefill"),
            prompt_token_ids=tokens,
            sampling=SamplingParams(temperature=0.0, max_tokens=1, seed=0),
            priority=prompt.priority,
            arrival=monotonic(),
            cache_salt=prompt.salt,
            tenant=prompt.tenant,
            weight=prompt.weight,
            background=prompt.background,
        )
        prefill = Prefill(self, request.request_id, wake)
        with self._lock:
            if len(self._open) >= MOST:
                return None
            self._open[request.request_id] = prefill
        try:
            self._core.submit(self._client, request)
        except TidemillError:
            self._end(request.request_id)
            return None
        return prefill

    def cancel(self, request_id: str) -> None:
        """Compute no more of it."""
        if self._end(request_id):
            self._core.cancel(self._client, request_id, None, FinishReason.CANCELLED)

    def _tokens(self, names: tuple[Name, ...], salt: str) -> tuple[int, ...] | None:
        """The tokens of these blocks; None: they are not those of a prompt with this salt here."""
        found: list[int] = []
        parent, size = self._root(salt), self._core.info.block_size
        for name in names:
            tokens = array("i")
            if len(name[2]) != size * tokens.itemsize:
                return None
            tokens.frombytes(name[2])
            key = block_key(parent, tokens)
            if key != name:
                return None
            found += tokens
            parent = key.digest
        return tuple(found) or None

    def _take(self, message: Message) -> None:
        if isinstance(message, Outputs):
            for output in message.outputs:
                if output.finish_reason is not None:
                    self._end(output.request_id)
        elif isinstance(message, Fatal):
            for request_id in list(self._open):
                self._end(request_id)

    def _end(self, request_id: str) -> bool:
        with self._lock:
            prefill = self._open.pop(request_id, None)
        if prefill is None:
            return False
        prefill.ended = True
        prefill.wake()
        return True
