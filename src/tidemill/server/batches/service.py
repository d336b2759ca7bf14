"""The batches of a server: made, validated, worked on, ended; taken over from servers that died.

A batch belongs to the server that holds its lease. It renews the lease while it works; when it is
killed the lease ends, and the next server (the same one, restarted, or another one of the same
database) goes on with the lines that have no result.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from tidemill.base.clock import monotonic
from tidemill.base.ids import new_id, new_underscored_id
from tidemill.base.log import get_logger
from tidemill.server.access.auth import Principal
from tidemill.server.batches.lines import LineReader
from tidemill.server.batches.output import FILES, output_line
from tidemill.server.batches.request import Answer, post
from tidemill.server.batches.run import PAGE, Run
from tidemill.store import batches, files
from tidemill.store.batches import Batch, Line, Outcome, Result, State
from tidemill.store.database import Database
from tidemill.store.unavailable import DatabaseUnavailable

log = get_logger(__name__)

LEASE_SECONDS = 10
POLL_SECONDS = 3.0
IDLE_POLL_SECONDS = 10.0
"""Of a database that other servers may share."""

AT_ONCE = 8
"""Batches that one server works on at the same time."""

WINDOW = 32
"""Lines in flight, over all batches, while nobody else asks for anything."""

BUSY_WINDOW = 1
"""The same while others' requests are answered, and `RECENT_SECONDS` after."""

RECENT_SECONDS = 1.0

DAY = 86400
HEADERS: Mapping[str, tuple[tuple[bytes, bytes], ...]] = {
    "anthropic": ((b"anthropic-version", b"2023-06-01"),),
}
"""Headers of a dialect's requests."""

Owner = Callable[[Mapping[str, Any]], Principal | None]


@dataclass(slots=True)
class _Work:
    """A batch that this server works on."""

    task: asyncio.Task[None]
    stop: Outcome | None = None
    run: Run | None = None


@dataclass(slots=True)
class _Lines:
    """The lines of a batch, in the database."""

    database: Database
    batch_id: str

    async def open_lines(self, after: int, limit: int) -> Sequence[Line]:
        """See `LineStore`."""
        work = partial(batches.open_lines, batch_id=self.batch_id, after=after, limit=limit)
        return await self.database.read(work, patience=float("inf"))

    async def record(self, results: Sequence[Result]) -> None:
        """See `LineStore`; repeated, it changes nothing."""
        work = partial(batches.record, batch_id=self.batch_id, results=results)
        await self.database.write(work, patience=float("inf"))


class BatchService:
    """Batches in a database, and the work on them.

    Args:
        database: open.
        app: the server's application.
        principal: the principal that asked, as `Batch.principal` describes it; None: it may ask no
            longer.
        busy: whether others' requests are being answered.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        app: ASGIApp,
        principal: Owner,
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.database = database
        self._app = app
        self._principal = principal
        self._busy = busy
        self._clock = clock
        self._server = new_id("server")
        self._works: dict[str, _Work] = {}
        self._wake = asyncio.Event()
        self._last_busy = -math.inf
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work, on batches that were left too."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._poll())

    async def close(self, timeout: float = 5.0) -> None:
        """Stop; batches go on with the next start, or on another server."""
        tasks = [work.task for work in self._works.values()]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        with suppress(DatabaseUnavailable):
            await self.database.write(partial(batches.let_go, server=self._server))

    @property
    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    # -- what clients ask --------------------------------------------------------------------

    async def create(self, batch: Batch, lines: Iterable[Line] | None = None) -> Batch:
        """Store a new batch and begin to work on it.

        Args:
            batch: in the state VALIDATING if its lines are a file's, else IN_PROGRESS.
            lines: its lines where they are there.
        """

        def work(connection: Any) -> None:
            batches.create(connection, batch)
            if lines is not None:
                batches.add_lines(connection, batch.id, lines)

        await self.database.write(work)
        self.start()
        self._wake.set()
        return batch

    async def find(self, owner: str, batch_id: str) -> Batch | None:
        """A batch of an owner."""
        return await self.database.read(partial(batches.find, owner=owner, batch_id=batch_id))

    async def counts(self, batch_id: str) -> dict[Outcome, int]:
        """Lines by outcome."""
        return await self.database.read(partial(batches.counts, batch_id=batch_id))

    async def cancel(self, owner: str, batch_id: str) -> Batch | None:
        """Cancel a batch; lines that have no result get none. One that has ended stays as it is."""
        if await self.find(owner, batch_id) is None:
            return None
        await self._change(batch_id, State.CANCELLING, (State.VALIDATING, State.IN_PROGRESS))
        self.start()
        work = self._works.get(batch_id)
        if work is not None:
            work.stop = Outcome.CANCELLED
            work.task.cancel()
        self._wake.set()
        return await self.find(owner, batch_id)

    async def results(
        self, batch_id: str, outcomes: Iterable[Outcome], page: int = 64
    ) -> AsyncIterator[list[Result]]:
        """Results in the order of the lines, page by page."""
        wanted, after = tuple(outcomes), -1
        while True:
            work = partial(
                batches.results, batch_id=batch_id, outcomes=wanted, after=after, limit=page
            )
            found = await self.database.read(work)
            if found:
                yield found
                after = found[-1].number
            if len(found) < page:
                return

    # -- work --------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            self._wake.clear()  # before looking: what changes meanwhile is looked at again
            unfinished = True
            try:
                unfinished = await self._look()
            except DatabaseUnavailable:
                pass
            except Exception:
                log.exception("the batches could not be looked at; again in %g s", POLL_SECONDS)
            shared = self.database.dialect == "postgresql"
            seconds = POLL_SECONDS if unfinished else IDLE_POLL_SECONDS if shared else None
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    async def _look(self) -> bool:
        """Claim what is to be done, and keep what this server does; False if all is done, by any
        server."""
        claim = partial(
            batches.claim, server=self._server, now=self.now, lease=LEASE_SECONDS, limit=AT_ONCE
        )
        found = await self.database.write(claim)
        for batch in found:
            work = self._works.get(batch.id)
            if work is None:
                task = asyncio.ensure_future(self._work(batch))
                self._works[batch.id] = _Work(task)
                task.add_done_callback(partial(self._ended, batch.id))
            elif batch.status is State.CANCELLING and work.stop is None:  # by another server
                work.stop = Outcome.CANCELLED
                work.task.cancel()
        return bool(found) or await self.database.read(batches.any_unfinished)

    def _ended(self, batch_id: str, task: asyncio.Task[None]) -> None:
        del self._works[batch_id]
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("batch %s: %s", batch_id, task.exception(), exc_info=task.exception())

    async def _work(self, claimed: Batch) -> None:
        # Read again: whoever cancelled it between the claim and now found nobody to tell.
        batch = await self.database.read(
            partial(batches.find, owner=None, batch_id=claimed.id), patience=float("inf")
        )
        if batch is None:
            return
        if batch.status is State.VALIDATING:
            validated = await self._validate(batch)
            if validated is None:
                return
            batch = validated
        if batch.status is State.IN_PROGRESS:
            await self._answer_lines(batch)
        await self._finish(batch)

    async def _validate(self, batch: Batch) -> Batch | None:
        """Read the lines of the input file; None where they are not as they should be."""
        assert batch.input_file_id is not None
        clear = partial(batches.clear_lines, batch_id=batch.id)
        await self.database.write(clear, patience=float("inf"))
        reader = LineReader(batch.endpoint)
        number = 0
        while True:
            part = partial(files.chunk, file_id=batch.input_file_id, number=number)
            chunk = await self.database.read(part, patience=float("inf"))
            lines = list(reader.end() if chunk is None else reader.feed(chunk))
            if lines and not reader.errors:
                add = partial(batches.add_lines, batch_id=batch.id, lines=lines)
                await self.database.write(add, patience=float("inf"))
            if chunk is None:
                break
            number += 1
        if reader.errors:
            await self.database.write(clear, patience=float("inf"))
            await self._change(
                batch.id, State.FAILED, (State.VALIDATING,), errors=reader.errors, total=0
            )
            return None
        await self._change(batch.id, State.IN_PROGRESS, (State.VALIDATING,), total=reader.count)
        return await self.database.read(
            partial(batches.find, owner=None, batch_id=batch.id), patience=float("inf")
        )

    async def _answer_lines(self, batch: Batch) -> None:
        """Answer every line, until the batch expires or is cancelled."""
        work = self._works[batch.id]
        run = Run(_Lines(self.database, batch.id), partial(self._send, batch), self._window)
        work.run = run
        left = batch.expires - self._clock()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await run.run()
        except TimeoutError:
            work.stop = Outcome.EXPIRED
        except asyncio.CancelledError:
            if work.stop is None:
                raise  # the server stops
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()

    async def _send(self, batch: Batch, line: Line) -> Answer:
        principal = self._principal(batch.principal)
        if principal is None:
            return Answer(401, {}, b'{"error": {"message": "the key of this batch is gone"}}')
        headers = HEADERS.get(batch.dialect, ())
        return await post(self._app, batch.endpoint, line.body, principal, headers=headers)

    def _window(self) -> int:
        now = monotonic()
        if self._busy():
            self._last_busy = now
        window = BUSY_WINDOW if now - self._last_busy < RECENT_SECONDS else WINDOW
        running = sum(work.run is not None for work in self._works.values())
        return max(1, window // max(1, running))

    async def _finish(self, batch: Batch) -> None:
        work = self._works[batch.id]
        stop = work.stop
        if stop is None and batch.status is State.CANCELLING:
            stop = Outcome.CANCELLED
        last = {None: State.COMPLETED, Outcome.CANCELLED: State.CANCELLED}.get(stop, State.EXPIRED)
        if stop is None:
            # A line may have been left open only by an expiry or a cancellation.
            counted = await self.database.read(
                partial(batches.counts, batch_id=batch.id), patience=float("inf")
            )
            if counted[Outcome.OPEN]:
                log.error("batch %s has %d lines left", batch.id, counted[Outcome.OPEN])
                return

        def close(connection: Any) -> None:
            if stop is not None:
                batches.close_rest(connection, batch.id, stop)
            counted = batches.counts(connection, batch.id)
            values = _output_files(connection, batch, counted, self.now)
            batches.change(connection, batch.id, last, self.now, only=batches.UNFINISHED, **values)

        await self.database.write(close, patience=float("inf"))

    async def _change(
        self, batch_id: str, status: State, only: Iterable[State], **values: Any
    ) -> None:
        work = partial(
            batches.change, batch_id=batch_id, status=status, now=self.now, only=only, **values
        )
        await self.database.write(work, patience=float("inf"))


def _output_files(
    connection: Any, batch: Batch, counted: Mapping[Outcome, int], now: int
) -> dict[str, str]:
    """The output and the error file of a batch that has ended, of OpenAI's: none without lines."""
    if batch.dialect != "openai":
        return {}
    found: dict[str, str] = {}
    for column, (name, outcomes) in FILES.items():
        if getattr(batch, column) is None and any(counted[o] for o in outcomes):
            file = files.File(
                id=new_id("file"),
                owner=batch.owner,
                purpose="batch_output",
                filename=f"{batch.id}_{name}.jsonl",
                status=files.READY,
                bytes=_size(connection, batch.id, outcomes),
                created=now,
                expires=None if batch.output_seconds is None else now + batch.output_seconds,
                batch_id=batch.id,
            )
            files.begin(connection, file)
            found[column] = file.id
    return found


def _size(connection: Any, batch_id: str, outcomes: Sequence[Outcome]) -> int:
    """Bytes of an output file."""
    size, after = 0, -1
    while True:
        found = batches.results(connection, batch_id, outcomes, after, PAGE)
        size += sum(len(output_line(batch_id, result)) for result in found)
        if len(found) < PAGE:
            return size
        after = found[-1].number


def new_batch(
    dialect: str,
    endpoint: str,
    owner: str,
    principal: Mapping[str, Any],
    now: int,
    *,
    window_seconds: int = DAY,
    input_file_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    total: int = 0,
    output_seconds: int | None = None,
    prefix: str = "batch",
) -> Batch:
    """A batch as it begins; with `input_file_id` its lines are validated first."""
    state = State.IN_PROGRESS if input_file_id is None else State.VALIDATING
    return Batch(
        id=new_underscored_id(prefix),
        owner=owner,
        principal=principal,
        dialect=dialect,
        endpoint=endpoint,
        status=state,
        input_file_id=input_file_id,
        output_file_id=None,
        error_file_id=None,
        window_seconds=window_seconds,
        metadata=metadata,
        errors=None,
        times={state.value: now},
        created=now,
        expires=now + window_seconds,
        output_seconds=output_seconds,
        total=total,
        completed=0,
        failed=0,
    )
