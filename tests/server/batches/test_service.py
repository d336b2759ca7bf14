"""Batches in a real database, answered by a scripted application."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Role
from tidemill.server.batches import service as service_module
from tidemill.server.batches.service import BatchService, new_batch
from tidemill.store import files
from tidemill.store.batches import Batch, Line, Outcome, State
from tidemill.store.database import Database
from tidemill.store.location import Location
from tidemill.store.unavailable import DatabaseUnavailable

URL = "/v1/chat/completions"
OWNER = "key:a"


class App:
    """Answers with the custom content of the body; what it does can be changed."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.cancelled = 0
        self.at_once = self.most = 0
        self.answer: Callable[[dict[str, Any], int], tuple[int, dict[str, str]]] = (
            lambda body, count: (200, {})
        )
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["state"]["background"] and scope["state"]["principal"].client_id == OWNER
        body = json.loads((await receive())["body"])
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            self.seen[body["say"]] += 1
            await self.hold.wait()
            await asyncio.sleep(0)
            status, headers = self.answer(body, self.seen[body["say"]])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        pairs = [(k.encode(), v.encode()) for k, v in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        text = json.dumps({"said": body["say"]}).encode()
        await send({"type": "http.response.body", "body": text})


def principal(stored: Mapping[str, Any]) -> Principal:
    return Principal(stored["client_id"], "a", Role.USER)


@asynccontextmanager
async def opened(where: Location) -> AsyncIterator[Database]:
    database = Database(where)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def asked(count: int, **changes: Any) -> tuple[Batch, list[Line]]:
    lines = [Line(i, f"c{i}", json.dumps({"say": f"s{i}"}).encode()) for i in range(count)]
    batch = new_batch("openai", URL, OWNER, {"client_id": OWNER}, 1000, total=count, **changes)
    return batch, lines


async def ended(service: BatchService, batch_id: str) -> Batch:
    async with asyncio.timeout(30):
        while True:
            batch = await service.find(OWNER, batch_id)
            assert batch is not None
            if batch.status in (State.COMPLETED, State.CANCELLED, State.EXPIRED, State.FAILED):
                return batch
            await asyncio.sleep(0.02)


async def all_results(service: BatchService, batch_id: str) -> list[tuple[str, Outcome, bytes]]:
    wanted = [outcome for outcome in Outcome if outcome is not Outcome.OPEN]
    return [
        (result.custom_id, result.outcome, result.answer)
        async for page in service.results(batch_id, wanted)
        for result in page
    ]


def service_of(database: Any, app: App, now: Callable[[], float] = lambda: 1000.0) -> Any:
    return BatchService(database, app, principal, clock=now)


async def test_every_line_has_one_result_in_order(location: Location) -> None:
    app = App()
    app.answer = lambda body, count: (400 if body["say"].endswith("7") else 200, {})
    async with opened(location) as database:
        service = service_of(database, app)
        batch, lines = asked(300)
        await service.create(batch, lines)
        done = await ended(service, batch.id)
        assert (done.status, done.completed, done.failed) == (State.COMPLETED, 270, 30)
        found = await all_results(service, batch.id)
        assert [name for name, _, _ in found] == [line.custom_id for line in lines]
        assert all(json.loads(text)["said"] == f"s{name[1:]}" for name, _, text in found)
        assert set(app.seen.values()) == {1} and 1 < app.most <= 32
        assert done.output_file_id and done.error_file_id
        await service.close()


async def test_busy_answers_come_later(location: Location) -> None:
    app = App()
    app.answer = lambda body, count: (
        (503, {"retry-after": "0"}) if count == 1 and body["say"] == "s1" else (200, {})
    )
    async with opened(location) as database:
        service = service_of(database, app)
        batch, lines = asked(3)
        await service.create(batch, lines)
        done = await ended(service, batch.id)
        assert (done.completed, done.failed) == (3, 0) and app.seen["s1"] == 2
        await service.close()


class Mortal:
    """A database for a server that dies: from then on nothing of it is written or read."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.dialect = database.dialect
        self.dead = False

    async def read(self, work: Any, patience: float = 0.0) -> Any:
        return await self.run(self.database.read, work, patience)

    async def write(self, work: Any, patience: float = 0.0) -> Any:
        return await self.run(self.database.write, work, patience)

    async def run(self, transaction: Any, work: Any, patience: float) -> Any:
        if self.dead and patience:
            await asyncio.Event().wait()
        if self.dead:
            raise DatabaseUnavailable("it", "the server is dead")
        return await transaction(work, patience)


async def test_another_server_goes_on_where_one_died(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "POLL_SECONDS", 0.05)
    first, second = App(), App()
    now = [1000.0]
    async with opened(location) as database, opened(location) as other:
        mortal = Mortal(database)
        dying = service_of(mortal, first, lambda: now[0])
        batch, lines = asked(200)
        await dying.create(batch, lines)
        while True:  # some results are written
            found = await dying.find(OWNER, batch.id)
            if found.completed > 0:
                break
            await asyncio.sleep(0.005)
        mortal.dead = True
        heir = service_of(other, second, lambda: now[0])
        heir.start()
        await asyncio.sleep(0.2)
        assert not second.seen, "the lease was not respected"
        now[0] += 11
        done = await ended(heir, batch.id)
        assert (done.completed, done.failed) == (200, 0)
        assert [n for n, _, _ in await all_results(heir, batch.id)] == [f"c{i}" for i in range(200)]
        assert len(second.seen) < 200
        await heir.close()
        await dying.close(timeout=0.1)


async def test_a_server_that_stops_leaves_its_batches_at_once(location: Location) -> None:
    app, next_app = App(), App()
    async with opened(location) as database:
        service = service_of(database, app)
        batch, lines = asked(50)
        app.hold.clear()
        await service.create(batch, lines)
        while app.at_once < 32:
            await asyncio.sleep(0.005)
        await service.close()
        assert app.cancelled == 32
        heir = service_of(database, next_app)
        heir.start()
        done = await ended(heir, batch.id)
        assert done.completed == 50 and len(next_app.seen) == 50
        await heir.close()


async def test_cancelling_ends_what_runs_and_keeps_what_is_there(location: Location) -> None:
    app = App()
    app.answer = lambda body, count: (200, {})
    async with opened(location) as database:
        service = service_of(database, app)
        batch, lines = asked(200)
        await service.create(batch, lines)
        while True:
            found = await service.find(OWNER, batch.id)
            if found.completed >= 10:
                break
            await asyncio.sleep(0.005)
        app.hold.clear()
        await service.cancel(OWNER, batch.id)
        done = await ended(service, batch.id)
        counted = await service.counts(batch.id)
        if done.status is State.CANCELLED:
            assert counted[Outcome.CANCELLED] == 200 - done.completed
        assert counted[Outcome.SUCCEEDED] == done.completed >= 10
        assert app.at_once == 0
        again = await service.cancel(OWNER, batch.id)
        assert again.status is done.status
        assert await service.cancel("key:b", batch.id) is None
        await service.close()


async def test_what_is_late_expires(location: Location) -> None:
    app = App()
    now = [1000.0]
    async with opened(location) as database:
        service = service_of(database, app, lambda: now[0])
        batch, lines = asked(3, window_seconds=1)
        app.hold.clear()
        await service.create(batch, lines)
        done = await ended(service, batch.id)
        assert done.status is State.EXPIRED and done.failed == 3 and app.cancelled == 3
        assert done.error_file_id and not done.output_file_id
        await service.close()


async def test_a_file_is_validated_then_answered(location: Location) -> None:
    def text(count: int, url: str) -> bytes:
        asked = (
            {"custom_id": f"c{i}", "method": "POST", "url": url, "body": {"say": f"s{i}"}}
            for i in range(count)
        )
        return b"\n".join(json.dumps(line).encode() for line in asked)

    async with opened(location) as database:
        app = App()
        service = service_of(database, app)
        for url, status in ((URL, State.COMPLETED), ("/v1/embeddings", State.FAILED)):
            content = text(40, url)
            file = files.File(
                f"file-{status}", OWNER, "batch", "in.jsonl", files.UPLOADING, 0, 1000, None, None
            )

            def upload(connection: Any, file: files.File = file, content: bytes = content) -> None:
                files.begin(connection, file)
                for number in range(0, len(content), 1000):
                    part = content[number : number + 1000]
                    files.append(connection, file.id, number // 1000, part)
                files.finish(connection, replace(file, status=files.READY, bytes=len(content)))

            await database.write(upload)
            batch = new_batch(
                "openai", URL, OWNER, {"client_id": OWNER}, 1000, input_file_id=file.id
            )
            await service.create(batch)
            done = await ended(service, batch.id)
            assert done.status is status
            if status is State.COMPLETED:
                assert (done.total, done.completed) == (40, 40)
            else:
                assert done.errors and done.errors[0]["code"] == "invalid_url" and not done.total
        await service.close()
