"""MemoryControl: an engine's memory follows its owner's messages while it runs.

All of it runs in the engine's thread and while no step is in flight, since blocks move and pages
are returned to the system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.heap import give_back
from tidemill.base.log import get_logger, summary
from tidemill.contract.request import RequestError
from tidemill.contract.wire import (
    Control,
    Controlled,
    EngineInfo,
    EngineMemory,
    MemoryRequest,
    ResizeCache,
    Sleep,
    Wake,
)
from tidemill.executor.base import Executor
from tidemill.memory.lease import KVMemory

_log = get_logger(__name__)

ASLEEP = TidemillError(
    ErrorKind.INTERNAL, "the engine sleeps: whoever sends it requests must wake it first"
)

MAP_BLOCKS = 2048
"""Of a map of blocks: reading so many states takes the engine's thread half a millisecond."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    message: Control
    answer: Callable[[Controlled], None]


class MemoryControl:
    """Carries out `Control` messages.

    Args:
        memory: the KV cache's books.
        info: the engine's properties.
        has_requests: whether any request is open.
        unload_adapters: gives back what is loaded again when a request needs it.

    Attributes:
        asleep: the weights are released; no step may be submitted.
    """

    def __init__(
        self,
        memory: KVMemory,
        info: EngineInfo,
        has_requests: Callable[[], bool],
        unload_adapters: Callable[[], None],
    ) -> None:
        self.asleep = False
        self._memory = memory
        self._info = info
        self._has_requests = has_requests
        self._unload_adapters = unload_adapters
        self._block_bytes = info.block_size * info.kv_bytes_per_token
        self._waiting: list[_Waiting] = []
        self._beyond = 0  # blocks in use beyond the cache's size, of which pages will be returned

    def add(self, message: Control, answer: Callable[[Controlled], None]) -> None:
        """Queue a message; `answer` is called once it is carried out."""
        self._waiting.append(_Waiting(message, answer))

    @property
    def due(self) -> bool:
        """True if `run` has something to do."""
        if self._waiting:
            return True
        return self._beyond > 0 and self._memory.num_beyond < self._beyond

    def run(self, executor: Executor) -> None:
        """Carry out what is due. No step may be in flight."""
        if self._beyond and self._memory.num_beyond < self._beyond:
            self._return_retired(executor)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            nonce = one.message.nonce
            try:
                self._carry_out(one.message, executor)
                mapped = isinstance(one.message, MemoryRequest) and one.message.map
                answer = Controlled(nonce, self.report(executor, mapped=mapped))
            except TidemillError as error:
                why = RequestError(error.kind, error.message, error.param, error.retryable)
                answer = Controlled(nonce, error=why)
            except Exception as error:
                _log.exception("the engine's memory could not be changed")
                text = f"the engine's memory could not be changed: {summary(error)}"
                answer = Controlled(nonce, error=RequestError(ErrorKind.INTERNAL, text))
            one.answer(answer)

    def report(self, executor: Executor, *, mapped: bool = False) -> EngineMemory:
        """What the engine holds now; with the states of its blocks if `mapped`."""
        memory, groups = self._memory, self._memory.num_groups
        per_block = self._block_bytes // groups  # on average: groups have equally many blocks
        blocks = memory.num_blocks + memory.num_beyond
        return EngineMemory(
            weights=0 if self.asleep else self._info.weight_bytes,
            loading=executor.unloaded_bytes(),
            kv=0 if self.asleep else blocks * per_block,
            kv_blocks=memory.num_blocks // groups,
            kv_used=memory.num_used * per_block,
            kv_cached=memory.num_cached * per_block,
            kv_least=self._least * self._block_bytes,
            kv_most=(self._info.reserved_blocks or self._info.num_blocks) * self._block_bytes,
            states=0 if self.asleep else self._info.state_bytes,
            asleep=self.asleep,
            kv_map=memory.block_map(MAP_BLOCKS) if mapped and not self.asleep else "",
        )

    @property
    def _least(self) -> int:
        """Blocks of one request of full length. The context never shrinks: an answer must not
        depend on how much memory other models leave."""
        return min(self._memory.blocks_for(self._info.max_model_len), self._info.num_blocks)

    def _carry_out(self, message: Control, executor: Executor) -> None:
        if isinstance(message, ResizeCache):
            self._resize(message.kv_bytes, executor)
        elif isinstance(message, Sleep) and not self.asleep:
            self._sleep(executor, keep_prefixes=message.keep_prefixes)
        elif isinstance(message, Wake) and self.asleep:
            executor.restore_weights()
            self.asleep = False

    def _resize(self, kv_bytes: int, executor: Executor) -> None:
        blocks = max(self._least, 1, kv_bytes // self._block_bytes)
        executor.copy(self._memory.resize(blocks))
        executor.limit_cache(blocks)
        self._return_retired(executor)

    def _return_retired(self, executor: Executor) -> None:
        self._beyond = self._memory.num_beyond
        for group, retired in enumerate(self._memory.retired()):
            if retired:
                executor.give_back(group, retired)

    def _sleep(self, executor: Executor, *, keep_prefixes: bool) -> None:
        if self._has_requests():
            raise TidemillError(
                ErrorKind.UNAVAILABLE,
                "the engine has requests and sleeps only without any",
                retryable=True,
            )
        executor.release_weights()  # first: it may refuse
        self._unload_adapters()
        self.asleep = True
        if keep_prefixes:
            for group, blocks in enumerate(self._memory.vacate(monotonic())):
                executor.give_back(group, blocks)
        else:
            self._memory.forget_all()
            executor.empty_cache()
        give_back()
