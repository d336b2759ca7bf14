"""The answer of a pipeline to one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.base.log import get_logger
from tidemill.contract.request import FinishReason, RequestTimings
from tidemill.contract.resolve import ContextLengthError
from tidemill.generation.caller import UNLIMITED
from tidemill.generation.choices import ChoiceDelta
from tidemill.generation.request import GenerateRequest
from tidemill.pipelines.messages import Ended, Raised, Start, Text
from tidemill.server.admission.answers import AnswerSize
from tidemill.server.errors import Problem, Rejection
from tidemill.server.host.charges import settle
from tidemill.server.host.pipelines.calls import Calling
from tidemill.server.host.pipelines.process import Event, Gone, PipelineProcess, Run
from tidemill.server.host.pipelines.request import conversation_of, prepared_of
from tidemill.telemetry.trace import Trace

if TYPE_CHECKING:
    from tidemill.server.host.pipelines.pipeline import Pipeline
    from tidemill.server.host.position import Positions

T = TypeVar("T")

log = get_logger(__name__)

PASSED_ON = (ErrorKind.OVERLOADED, ErrorKind.TIMEOUT, ErrorKind.UNAVAILABLE)
"""Errors of a model that are the client's to know, if the file does not handle them."""

_PASSED_STATUS = (408, 429, 503)


class PipelineGeneration:
    """A `Generation`. One choice; usage is what the calls of models used so far.

    Args:
        pipeline: that answers.
        request_id: of the answer.
        asked: the request.
        max_answer_bytes: bound on the size of the answer.
        streamed: output is sent as it is generated.
        callers: the pipelines that the request comes from.

    Raises:
        TidemillError: BAD_REQUEST or UNSUPPORTED, naming a field that no pipeline can obey.
    """

    num_choices = 1

    def __init__(
        self,
        pipeline: Pipeline,
        request_id: str,
        asked: GenerateRequest,
        *,
        max_answer_bytes: int,
        streamed: bool,
        callers: Sequence[str] = (),
    ) -> None:
        self.request_id = request_id
        self.prepared = prepared_of(asked)
        self.finished = False
        self.admitted = False
        self.finish_reasons: list[str] = []
        self.timings: RequestTimings | None = None  # its calls have their own
        self.positions: Positions | None = None
        self.trace = Trace(request_id) if pipeline.served.explain else None
        self._pipeline = pipeline
        self._conversation = conversation_of(pipeline.name, asked)
        self._streamed = streamed
        self._most = max_answer_bytes
        deadline = asked.arrival + pipeline.options.timeout
        if asked.caller.deadline is not None:
            deadline = min(deadline, asked.caller.deadline)
        self._deadline = deadline
        self._calling = Calling(
            pipeline.host,
            request_id,
            replace(asked.caller, deadline=None if deadline == float("inf") else deadline),
            (*callers, pipeline.name),
            max_answer_bytes,
            trace=self.trace,
        )

    @property
    def prompt_tokens(self) -> int:
        """Of all calls."""
        return self._calling.usage.prompt

    @property
    def completion_tokens(self) -> int:
        """Of all calls."""
        return self._calling.usage.completion

    @property
    def reasoning_tokens(self) -> int:
        """Of all calls."""
        return self._calling.usage.reasoning

    @property
    def cached_tokens(self) -> int:
        """Of all calls."""
        return self._calling.usage.cached

    @property
    def drafts(self) -> tuple[int, int]:
        """Not known of calls."""
        return 0, 0

    @property
    def spent(self) -> Mapping[str, tuple[int, int, int]]:
        """Prompt, cached and generated tokens by the model whose price they have."""
        return self._calling.spent

    async def ready(self) -> None:
        """Wait for the process, so that the model's fingerprint is that of the file as it is now.

        Raises:
            TidemillError: UNAVAILABLE, there is none; TIMEOUT.
        """
        await self._bounded(self._pipeline.process())

    async def steps(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """See `Generation`. Closing the generator cancels the file's task and its calls."""
        served, asked = self._pipeline.served, self.prepared.request
        size = AnswerSize(per_token=0 if self._streamed else 1)  # counted in bytes of text
        quota = asked.caller.quota  # the request counts here, and the tokens of its calls there
        trace = self.trace
        if trace is not None:
            trace.began = monotonic()
        held = UNLIMITED if quota is None else await quota.reserve(self._pipeline.name, 0, 0, 0)
        if trace is not None:
            trace.reserved, trace.quota = monotonic(), held.taken()
        try:
            ticket = served.admission.admit(asked.caller, [()], self.prepared.sampling, size, trace)
        except BaseException:
            held.release()
            raise
        self.admitted = True
        if trace is not None:
            trace.submitted = monotonic()
        observer = served.metrics.start()
        reason, taken, counted, first = FinishReason.CANCELLED.value, 0, 0, True
        process: PipelineProcess | None = None
        run: Run | None = None
        event: Event | None = None
        try:
            process = await self._bounded(self._pipeline.process())
            run = process.begin(self._calling.answer)
            await process.send(self._start(run))
            while not self.finished:
                event = await self._bounded(process.next(run))
                text = event.text if isinstance(event, Text) else ""
                if isinstance(event, Ended):
                    self.finished, reason = True, FinishReason.STOP.value
                    self.finish_reasons.append(reason)
                elif not isinstance(event, Text):
                    raise self._error(event)
                length = len(text.encode())
                taken += length
                self._check_size(taken)
                observer.tokens(0, self.completion_tokens - counted)
                counted = self.completion_tokens
                ticket.progress(0, length)
                finish = reason if self.finished else None
                yield [ChoiceDelta(0, text, (), first=first, finish=finish)]
                first = False
        except TidemillError as error:
            reason = error.kind.value
            raise
        except Rejection as error:
            reason = error.problem.code or "error"
            raise
        finally:
            if process is not None and run is not None:
                process.end(run, ended=isinstance(event, Ended | Raised))
            ticket.close([taken] if self.finished else [])
            settle(held, reason, prompt=0, cached=0, generated=0)
            observer.finish(reason, self.prompt_tokens, self.cached_tokens)

    def _start(self, run: Run) -> Start:
        host, sent = self._pipeline.host, self._conversation
        return Start(
            run=run.number,
            request_id=self.request_id,
            pipeline=self._pipeline.name,
            messages=sent.messages,
            sampling=sent.sampling,
            options=dict(self._pipeline.options.options),
            stream=self._streamed,
            names=host.names,
            default=host.default.name,
            seconds=self._deadline - monotonic(),
        )

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        left = self._deadline - monotonic()
        try:
            async with asyncio.timeout(None if left == float("inf") else max(0.0, left)):
                return await work
        except TimeoutError:
            raise TidemillError(
                ErrorKind.TIMEOUT,
                f"the pipeline {self._pipeline.name!r} did not answer in time: it has "
                f"{self._pipeline.options.timeout:g} s, or less where the request says so",
            ) from None

    def _check_size(self, size: int) -> None:
        if not self._streamed and size > self._most:
            raise bad_request(
                None,
                f"the answer has more than {self._most} bytes (max_answer_bytes); stream it",
            )

    def _error(self, event: Raised | Gone) -> Exception:
        name = self._pipeline.name
        if isinstance(event, Gone):
            return TidemillError(
                ErrorKind.UNAVAILABLE,
                f"the process of the pipeline {name!r} ended while it answered; send the request "
                "again",
                retryable=True,
            )
        if event.rejection is not None:
            return bad_request(None, event.rejection)
        error = None if event.call is None else self._calling.errors.get(event.call)
        if error is not None and _passed_on(error):
            return error
        why = "" if error is None else f" (a call failed: {error})"
        log.error("request %s: pipeline %s: %s%s", self.request_id, name, event.where, why)
        message = (
            f"the pipeline {name!r} failed; the server's log has the details under request id "
            f"{self.request_id}"
        )
        return Rejection(Problem(500, "server_error", message, None, "pipeline_failed"))


def _passed_on(error: Exception) -> bool:
    if isinstance(error, Rejection):
        return error.problem.status in _PASSED_STATUS
    if isinstance(error, ContextLengthError):
        return True
    return isinstance(error, TidemillError) and error.kind in PASSED_ON
