"""A pipeline as the host sees it: a served name whose answers come from a Python file's process.

The process is started at once and kept; it is replaced when it has died or its file has changed. A
changed file that cannot be loaded leaves the former version in service.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, unsupported
from tidemill.base.log import get_logger
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.contract.cache import CacheNews
from tidemill.contract.request import AdapterUse, ChoiceOutput, EngineRequest, FinishReason
from tidemill.contract.wire import AdapterInfo, EngineInfo, EngineMemory, EngineStats
from tidemill.generation.request import GenerateRequest
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.admission.shared import SharedBounds
from tidemill.server.errors import reject
from tidemill.server.host.host import ModelHost
from tidemill.server.host.pipelines.generation import PipelineGeneration
from tidemill.server.host.pipelines.options import PipelineOptions
from tidemill.server.host.pipelines.process import PipelineProcess
from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Hosted, Loaded, Slot
from tidemill.server.host.switching import Need
from tidemill.text.answering import ChatSide
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tidemill.contract.profile import EngineProfile
    from tidemill.engine.reports import LoadProgress
    from tidemill.metrics.registry import ServerMetrics

log = get_logger(__name__)

RETRY_SECONDS = 1.0
"""A file that could not be loaded is not tried again before, unless it has changed."""

# No text has tokens here; the vocabulary has one, since an empty one is none.
_NO_WORDS = (
    b'{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,'
    b'"pre_tokenizer":null,"post_processor":null,"decoder":{"type":"ByteLevel",'
    b'"add_prefix_space":false,"trim_offsets":true,"use_regex":true},'
    b'"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}'
)
_UNBOUNDED_TOKENS = 2**40

Signature = tuple[int, int, int]


class Pipeline:
    """A `slot.Loader` and `slot.Loaded` in one: there is nothing to load but a process.

    Args:
        options: what is served.
        host: the models that its calls reach.
        bounds: shared with the models.
        metrics: of the server.
        build: version of the software.

    Attributes:
        options, host: as given.
        served: what dialects see.
    """

    def __init__(
        self,
        options: PipelineOptions,
        host: ModelHost,
        bounds: SharedBounds,
        metrics: ServerMetrics,
        build: str = "",
    ) -> None:
        self.options = options
        self.host = host
        self._process: PipelineProcess | None = None
        self._old: list[PipelineProcess] = []
        self._starting: asyncio.Task[PipelineProcess] | None = None
        self._loaded: Signature | None = None  # of the file in the process
        self._failed: tuple[Signature | None, float, TidemillError] | None = None
        self._draining: str | None = None
        self._closed = False
        info = _info(options.name)
        tokenizer = Tokenizer(TokenizerData(tokenizer_json=_NO_WORDS))
        template = ChatTemplate(None)
        self.served = ServedModel(
            client=_NoEngine(info, self),
            tokenizer=tokenizer,
            template=template,
            chat=ChatSide.of(tokenizer, template, lambda source, param: source),
            admission=bounds.admission(options.name, AdmissionOptions(), lambda: info),
            metrics=metrics.of(options.name),
            build=build,
            pipeline=self,
        )

    @property
    def name(self) -> str:
        """The served name."""
        return self.options.name

    async def generation(
        self,
        request_id: str,
        asked: GenerateRequest,
        *,
        max_answer_bytes: int,
        streamed: bool,
        callers: Sequence[str] = (),
    ) -> PipelineGeneration:
        """An answer to a request; see `begin_generation`."""
        if self._draining is not None:
            raise reject(503, self._draining, code="shutting_down")
        made = PipelineGeneration(
            self,
            request_id,
            asked,
            max_answer_bytes=max_answer_bytes,
            streamed=streamed,
            callers=callers,
        )
        await made.ready()
        return made

    @property
    def running(self) -> PipelineProcess | None:
        """The latest process, alive or not."""
        return self._process

    # -- the process -------------------------------------------------------------------------

    async def process(self) -> PipelineProcess:
        """The process of the file as it is now, started if there is none.

        Raises:
            TidemillError: UNAVAILABLE, none can be started; the log says why.
        """
        while True:
            running = self._process
            alive = running is not None and running.gone is None
            signature = _signature(self.options.file)
            if running is not None and alive and signature in (self._loaded, None):
                return running
            if self._failed is not None:
                seen, since, error = self._failed
                if seen == signature and running is not None and alive:
                    return running  # a version that cannot be loaded changes nothing
                if seen == signature and monotonic() < since + RETRY_SECONDS:
                    raise error
            # One start for everybody: a client that leaves does not end it.
            starting = self._starting
            if starting is None:
                starting = asyncio.create_task(self._start(signature))
                self._starting = starting
                starting.add_done_callback(self._started)
            try:
                return await asyncio.shield(starting)
            except TidemillError:
                if not alive:
                    raise

    def _started(self, task: asyncio.Task[PipelineProcess]) -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # said where it was raised

    async def _start(self, signature: Signature | None) -> PipelineProcess:
        options = self.options
        if self._closed:
            raise self._unavailable()
        digest = await asyncio.to_thread(_digest, options.file)
        try:
            process = await PipelineProcess.start(options.name, options.file, options.memory)
        except TidemillError as error:
            log.error("pipeline %s: %s cannot be loaded: %s", self.name, options.file, error)
            failure = self._unavailable()
            self._failed = (signature, monotonic(), failure)
            raise failure from None
        old, self._process = self._process, process
        self._loaded, self._failed = signature, None
        self.served.config_digest = digest
        if old is not None and old.gone is None:
            log.info("pipeline %s: the file has changed; its new version runs", self.name)
            self._old = [one for one in self._old if one.gone is None]
            self._old.append(old)
            old.retire()
        return process

    def _unavailable(self) -> TidemillError:
        return TidemillError(
            ErrorKind.UNAVAILABLE,
            f"the pipeline {self.name!r} cannot be started; the server's log says why",
            retryable=True,
        )

    def add(self) -> Slot:
        """Serve it from now on. Its process starts in the background; what is wrong with the file
        is in the log.

        Raises:
            TidemillError: CONFIG, its name is taken.
        """
        slot = self.host.add_loaded(Hosted(self.name), self, self)
        signature = _signature(self.options.file)
        self._starting = asyncio.create_task(self._start(signature))
        self._starting.add_done_callback(self._started)
        return slot

    # -- slot.Loader -------------------------------------------------------------------------

    async def need(self) -> Need | None:
        """Nothing of the models' memory."""
        return Need(0, 0, 0)

    async def describe(self) -> None:
        """Nothing: its file is run to find out."""

    async def load(self, kv_bytes: int | None, progress: Callable[[LoadProgress], None]) -> Loaded:
        """Start the process again."""
        self._closed = False
        await self.process()
        return self

    # -- slot.Loaded -------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None or self._process.gone else self._process.pid

    @property
    def ended(self) -> str | None:
        """Never: a process that died is started again by the next request."""
        return None

    def on_end(self, callback: Callable[[], None]) -> None:
        """See `ended`."""

    def drain(self, reason: str) -> None:
        """Reject new requests; those in flight go on."""
        self._draining = reason

    async def resize(self, kv_bytes: int) -> None:
        """It has no cache."""

    async def sleep(self) -> bool:
        """It cannot."""
        return False

    async def wake(self) -> None:
        """It never sleeps."""

    async def block_map(self) -> EngineMemory | None:
        """It has no cache."""
        return None

    async def cache_news(self, cursor: str) -> CacheNews | None:
        """It has no cache."""
        return None

    away = None
    """See `slot.Loaded`."""

    async def leave(self, address: str) -> int:
        """See `slot.Loaded`."""
        raise unsupported("model", "a pipeline has no engine: name a model that it uses")

    async def bring_back(self) -> int:
        """See `slot.Loaded`."""
        return 0

    async def profile(self, seconds: float, *, events: int, rates: bool) -> EngineProfile:
        """It computes no steps.

        Raises:
            TidemillError: UNSUPPORTED.
        """
        raise unsupported("model", "a pipeline computes no steps: profile the models that it calls")

    async def close(self) -> None:
        """End the process. Requests in flight end with a retryable error."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        running = [self._process] if self._process is not None else []
        await asyncio.gather(*(one.close() for one in (*running, *self._old)))
        self._process = None


def _signature(file: str) -> Signature | None:
    """Tells versions of a file apart; None where there is none now."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(file: str) -> str:
    """SHA-256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def _info(name: str) -> EngineInfo:
    """An engine's properties, for what reads them of every model."""
    return EngineInfo(
        model=name,
        backend="pipeline",
        isa="",
        device="cpu",
        dtype="",
        quantization="",
        kv_dtype="",
        threads=1,
        vocab_size=1,
        max_model_len=_UNBOUNDED_TOKENS,
        block_size=1,
        num_blocks=_UNBOUNDED_TOKENS,
        kv_bytes_per_token=0,
        kv_bytes=0,
        weight_bytes=0,
        max_num_seqs=1,
        max_step_tokens=1,
        prefix_caching=False,
    )


class _NoEngine:
    """Takes the place of an engine's client.

    Attributes:
        info: see `EngineClient`.
    """

    def __init__(self, info: EngineInfo, pipeline: Pipeline) -> None:
        self.info = info
        self._pipeline = pipeline

    @property
    def problem(self) -> str | None:
        """A pipeline is as ready as the default model is."""
        default = self._pipeline.host.default.loaded
        if default is None or default.served.pipeline is not None:
            return None
        return default.served.client.problem

    @property
    def last_stats(self) -> EngineStats:
        """Nothing."""
        return EngineStats()

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """There are none."""

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        """See `check_is_model`: no request gets here."""
        raise TidemillError(ErrorKind.UNSUPPORTED, "a pipeline has no engine")

    def cancel(
        self, request_id: str, choice: int | None = None, reason: str = FinishReason.CANCELLED
    ) -> None:
        """There is nothing to cancel."""

    async def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """A pipeline has none: UNSUPPORTED."""
        raise unsupported("lora_name", "a pipeline takes no adapters: its models do")

    def drop_adapter(self, digest: str) -> None:
        """There is nothing to drop."""

    async def stats(self) -> EngineStats:
        """Nothing."""
        return EngineStats()

    async def close(self) -> None:
        """See `Pipeline.close`."""
