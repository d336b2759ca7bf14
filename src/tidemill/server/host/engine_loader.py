"""Loads a model: its engine in a process of its own, and its text side here meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from tidemill.base.build import build_id
from tidemill.base.errors import ErrorKind, TidemillError, model_file_error
from tidemill.base.files import OpenedFile, opened_files
from tidemill.base.heap import give_back
from tidemill.contract.cache import CacheNews
from tidemill.contract.config import EngineConfig
from tidemill.engine.identity import different_files
from tidemill.engine.supervisor import SupervisedEngine, Supervision
from tidemill.generation.preset import NO_PRESET, Preset
from tidemill.server.host.made import NOT_SAID, Made
from tidemill.server.host.needs import ask_needs, need_of

if TYPE_CHECKING:
    from tidemill.contract.needs import ModelFacts
    from tidemill.contract.profile import EngineProfile
    from tidemill.contract.wire import EngineMemory
    from tidemill.engine.reports import LoadProgress
    from tidemill.server.host.served import ServedModel
    from tidemill.server.host.switching import Need
    from tidemill.text.answering import ChatSide
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer

MODEL_CHECK_SECONDS = 3.0
"""Seconds in which an engine that is still loading may report an error of its own."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TextSide:
    """A model's tokenizer, chat template and sampling defaults.

    Attributes:
        chat: what both support in a chat.
        preset: what the model brings to every request.
        files: the files that were opened for them.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    chat: ChatSide
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    preset: Preset = NO_PRESET
    files: tuple[OpenedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """What a model is, without its weights in memory.

    Attributes:
        text: its text side.
        facts: what its headers say.
        context: tokens of a request at most.
        gguf: whether it is a GGUF file.
        file_bytes: size of its weight files.
        made: how it was made.
    """

    text: TextSide
    facts: ModelFacts
    context: int
    gguf: bool
    file_bytes: int
    made: Made = NOT_SAID


@dataclass(frozen=True, slots=True)
class Opening:
    """A model that has been located.

    Attributes:
        config: the engine's configuration.
        load_text: opens tokenizer and template; runs in a thread while the engine loads.
        made: how it was made.
    """

    config: EngineConfig
    load_text: Callable[[], TextSide]
    made: Made = NOT_SAID


Serve = Callable[[SupervisedEngine, TextSide, EngineConfig], "ServedModel"]


class EngineLoader:
    """A `slot.Loader`.

    Args:
        locate: finds the model's files; runs in a thread.
        serve: makes what answers of engine and text side.
        supervision: of the engine.
        log_level: of the engine's process.
        kv_reserve: bytes that a KV cache may grow to; None: it does not grow.
        say: called with each line of progress.
    """

    def __init__(
        self,
        locate: Callable[[], Opening],
        serve: Serve,
        *,
        supervision: Callable[[], Supervision] = Supervision,
        log_level: str = "info",
        kv_reserve: int | None = None,
        say: Say = lambda line: None,
    ) -> None:
        self._locate = locate
        self._serve = serve
        self._supervision = supervision
        self._log_level = log_level
        self._kv_reserve = kv_reserve
        self._say = say

    async def need(self) -> Need | None:
        """See `slot.Loader`."""
        opening = await asyncio.to_thread(self._locate)
        return need_of(await ask_needs(opening.config), opening.config)

    async def load(
        self, kv_bytes: int | None, progress: Callable[[LoadProgress], None] = lambda told: None
    ) -> EngineLoaded:
        """See `slot.Loader`."""
        opening = await asyncio.to_thread(self._locate)
        config = opening.config
        if kv_bytes is not None:
            config = msgspec.structs.replace(
                config, kv_memory=kv_bytes, kv_reserve=self._kv_reserve
            )
        spawning = asyncio.ensure_future(
            SupervisedEngine.open(
                config,
                self._say,
                on_load=progress,
                # A budget is there for several models: what streams do comes first.
                background=kv_bytes is not None,
                log_level=self._log_level,
                supervision=self._supervision(),
            )
        )
        preparing = asyncio.ensure_future(_open_text(opening.load_text))
        try:
            failed = await _failure(spawning, preparing)
        except BaseException:
            await _abort(spawning, preparing)
            raise
        if failed is not None:
            await _abort(spawning, preparing)
            raise failed
        engine, text = spawning.result(), preparing.result()
        mismatch = different_files(text.files, engine.info.files, only_common=True)
        if mismatch is not None:
            await engine.close()
            raise model_file_error(mismatch)
        served = self._serve(engine, text, opening.config)
        served.made = opening.made
        return EngineLoaded(engine, served)

    async def describe(self) -> Described:
        """See `slot.Loader`."""
        opening = await asyncio.to_thread(self._locate)
        needs, text = await asyncio.gather(
            ask_needs(opening.config), asyncio.to_thread(opening.load_text)
        )
        assert needs.facts is not None  # of an engine's configuration there always are some
        gguf = opening.config.model.endswith(".gguf")
        return Described(
            text, needs.facts, needs.context, gguf=gguf, file_bytes=needs.files, made=opening.made
        )

    async def text(self) -> TextSide:
        """Open the text side alone: of a loaded model whose text side was configured anew.

        Raises:
            TidemillError: it cannot be opened.
        """
        opening = await asyncio.to_thread(self._locate)
        return await asyncio.to_thread(opening.load_text)


@dataclass(slots=True)
class EngineLoaded:
    """A `slot.Loaded`.

    Attributes:
        engine: the supervised engine.
        served: what answers.
    """

    engine: SupervisedEngine
    served: ServedModel

    @property
    def pid(self) -> int | None:
        """See `slot.Loaded`."""
        return self.engine.pid

    @property
    def ended(self) -> str | None:
        """See `slot.Loaded`."""
        failed = self.engine.failed
        return failed.result().message if failed.done() else None

    def on_end(self, callback: Callable[[], None]) -> None:
        """See `slot.Loaded`."""
        self.engine.failed.add_done_callback(lambda failed: callback())

    def drain(self, reason: str) -> None:
        """See `slot.Loaded`."""
        self.engine.drain(reason)

    async def resize(self, kv_bytes: int) -> None:
        """See `slot.Loaded`."""
        await self.engine.memory.resize(kv_bytes)

    async def sleep(self) -> bool:
        """See `slot.Loaded`."""
        try:
            await self.engine.memory.sleep()
        except TidemillError as error:
            if error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.UNSUPPORTED):
                return False
            raise
        return True

    async def wake(self) -> None:
        """See `slot.Loaded`."""
        await self.engine.memory.wake()

    async def block_map(self) -> EngineMemory | None:
        """See `slot.Loaded`."""
        return None if self.engine.memory.asleep else await self.engine.memory.block_map()

    async def cache_news(self, cursor: str) -> CacheNews | None:
        """See `slot.Loaded`."""
        return None if self.engine.memory.asleep else await self.engine.memory.cache_news(cursor)

    async def profile(self, seconds: float, *, events: int, rates: bool) -> EngineProfile:
        """See `slot.Loaded`."""
        from tidemill.engine.profiled import take_profile

        return await take_profile(self.engine, seconds, events=events, rates=rates)

    @property
    def away(self) -> tuple[str, int] | None:
        """See `slot.Loaded`."""
        return self.engine.away

    async def leave(self, address: str) -> int:
        """See `slot.Loaded`."""
        return await self.engine.leave(address)

    async def bring_back(self) -> int:
        """See `slot.Loaded`."""
        return await self.engine.bring_back()

    async def close(self) -> None:
        """See `slot.Loaded`."""
        await self.engine.close()
        self.served.metrics.unloaded()


async def _open_text(load_text: Callable[[], TextSide]) -> TextSide:
    # Runs while the engine starts. Sequential, since both parts hold the GIL: imports can reuse the
    # temporary memory of the vocabulary, which is released before the engine has its weights.
    def open_both() -> TextSide:
        with opened_files() as opened:
            text = load_text()
            text = replace(text, files=text.files or tuple(opened.values()))
        give_back()
        import_module("tidemill.server.app")
        return text

    # `build_id` is cached for when the engine is ready.
    text, _ = await asyncio.gather(asyncio.to_thread(open_both), asyncio.to_thread(build_id))
    return text


async def _failure(
    spawning: asyncio.Future[SupervisedEngine], preparing: asyncio.Future[TextSide]
) -> BaseException | None:
    """Wait for engine and text side; the exception if one failed, else None.

    The engine's errors about model files take precedence. So an error of the text side is reported
    only after the engine had `MODEL_CHECK_SECONDS` to check the files.
    """
    halves = (spawning, preparing)
    await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
    await asyncio.wait((spawning,), timeout=MODEL_CHECK_SECONDS)
    return next((h.exception() for h in halves if h.done() and h.exception()), None)


async def _abort(
    spawning: asyncio.Future[SupervisedEngine], preparing: asyncio.Future[TextSide]
) -> None:
    """Abort a failed or cancelled start, and stop an engine that was started."""
    spawning.cancel()
    await asyncio.gather(spawning, preparing, return_exceptions=True)
    if not spawning.cancelled() and spawning.exception() is None:
        await spawning.result().close()
