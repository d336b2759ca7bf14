"""The two clients behave alike: in-process, and over a real socket."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from helpers.drive import request
from helpers.fake_backend import FakeBackend, expected_tokens
from helpers.fake_engine import VOCAB, fake_core

from tidemill.base.build import build_id
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract import wire
from tidemill.contract.request import ChoiceOutput, FinishReason
from tidemill.contract.wire import Hello, Refused, Submit, frame, to_client_decoder
from tidemill.engine import process
from tidemill.engine.client import EngineClient, InprocClient, SocketClient
from tidemill.engine.core import EngineCore
from tidemill.engine.process import serve_core
from tidemill.engine.streams import resolve_seed
from tidemill.sched.scheduler import Scheduler

DIGEST = "digest"


class Setup:
    """A core with a client, and how to get another client."""

    def __init__(self, kind: str, core: EngineCore, backend: FakeBackend, path: str) -> None:
        self.kind, self.core, self.backend, self.path = kind, core, backend, path
        self.engine = None

    async def client(self) -> EngineClient:
        if self.kind == "inproc":
            return InprocClient(self.core, owner=False)
        return await SocketClient.connect(self.path, DIGEST)

    async def idle(self) -> None:
        """Wait until no block is held."""
        probe = await self.client()
        async with asyncio.timeout(5):
            while True:
                stats = await probe.stats()
                if stats.blocks_used == stats.running == stats.queued == 0:
                    break
                await asyncio.sleep(0.005)
        await probe.close()


@pytest.fixture(params=["inproc", "socket"])
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Setup]:
    core, backend = fake_core(step_seconds=0.001)
    made = Setup(request.param, core, backend, str(tmp_path / "s"))
    server = None
    if request.param == "socket":
        server, made.engine = await serve_core(core, made.path, DIGEST)
    yield made
    if server is not None:
        server.close()
    await asyncio.to_thread(core.close)


async def collect(stream: AsyncIterator[ChoiceOutput]) -> list[ChoiceOutput]:
    return [output async for output in stream]


def tokens_of(outputs: list[ChoiceOutput], choice: int = 0) -> list[int]:
    return [t for o in outputs if o.choice == choice for t in o.token_ids]


async def test_many_streams_at_once(setup: Setup) -> None:
    client = await setup.client()
    rng = random.Random(1)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))] for _ in range(40)]
    streams = [
        client.submit(request(f"r{i}", p, 12, temperature=i % 2, seed=i, n=1 + i % 3))
        for i, p in enumerate(prompts)
    ]
    results = await asyncio.gather(*map(collect, streams))
    for i, (prompt, outputs) in enumerate(zip(prompts, results, strict=True)):
        for choice in range(1 + i % 3):
            seed = i if i % 2 else None
            want = expected_tokens(prompt, 12, VOCAB, seed=seed, choice=choice)
            assert tokens_of(outputs, choice) == want
            ends = [o for o in outputs if o.choice == choice and o.finish_reason]
            assert [o.finish_reason for o in ends] == [FinishReason.LENGTH]
    assert client.last_stats.generated_tokens >= 40 * 12
    await setup.idle()
    assert (await client.stats()).preemptions == 0
    await client.close()


async def test_cancel_one_choice_and_then_all(setup: Setup) -> None:
    client = await setup.client()
    stream = client.submit(request("a", [1, 2, 3], 400, temperature=1.0, n=2))
    ended = {}
    seen = 0
    async for output in stream:
        seen += len(output.token_ids)
        if seen == 10:
            client.cancel("a", 0, "stop")
        if output.finish_reason is not None:
            ended[output.choice] = output.finish_reason
            if output.choice == 0:
                client.cancel("a")
    assert ended == {0: FinishReason.STOP, 1: FinishReason.CANCELLED}
    await setup.idle()
    await client.close()


async def test_a_client_that_leaves_frees_its_blocks(setup: Setup) -> None:
    client = await setup.client()
    other = await setup.client()
    stream = client.submit(request("same-id", [1, 2, 3], 500))
    theirs = other.submit(request("same-id", [4, 5, 6], 20))
    await anext(stream)
    await client.close()
    assert tokens_of(await collect(theirs)) == expected_tokens([4, 5, 6], 20, VOCAB)
    rest = await collect(stream)
    assert rest[-1].error is not None and rest[-1].error.kind == ErrorKind.UNAVAILABLE
    assert rest[-1].error.retryable
    await setup.idle()
    stats = await other.stats()
    assert stats.generated_tokens < 300, "the request ran to its end with nobody there"
    await other.close()


async def test_refusals_are_terminal_outputs(setup: Setup) -> None:
    client = await setup.client()
    outputs = await collect(client.submit(request("long", [1] * 600, 5, n=2)))
    assert [o.choice for o in outputs] == [0, 1]
    for output in outputs:
        assert output.error is not None and output.error.param == "prompt"
        assert "600" in output.error.message and "512" in output.error.message
    stream = client.submit(request("twice", [1], 50))
    with pytest.raises(TidemillError, match="already running"):
        client.submit(request("twice", [1], 5))
    assert len(tokens_of(await collect(stream))) == 50
    await client.close()


async def test_seeds_are_drawn_by_the_client(setup: Setup) -> None:
    client = await setup.client()
    one = request("a", [1, 2], 6, temperature=1.0)
    one = msgspec.structs.replace(one, sampling=msgspec.structs.replace(one.sampling, seed=None))
    stream = client.submit(one)
    seed = client.journals()[0].request.sampling.seed  # type: ignore[attr-defined]
    assert tokens_of(await collect(stream)) == expected_tokens([1, 2], 6, VOCAB, seed=seed)
    await client.close()


async def test_a_journal_replays_to_the_same_tokens(setup: Setup) -> None:
    client = await setup.client()
    stream = client.submit(request("a", [5, 6, 7], 40, temperature=1.0, seed=2, n=2))
    first: list[ChoiceOutput] = []
    async for output in stream:
        first.append(output)
        if len(first) == 15:
            break
    (journal,) = client.journals()  # type: ignore[attr-defined]
    replay = msgspec.structs.replace(journal.replay(), request_id="b")
    client.cancel("a")
    second = await collect(client.submit(replay))
    for choice in (0, 1):
        got = [*replay.resume[choice], *tokens_of(second, choice)]
        assert got == expected_tokens([5, 6, 7], 40, VOCAB, seed=2, choice=choice)
    await client.close()


async def test_a_step_that_fails_once_costs_nobody_anything(setup: Setup) -> None:
    client = await setup.client()
    stream = client.submit(request("a", [1, 2, 3], 300))
    await anext(stream)
    setup.backend.fail_next = 1
    assert len(tokens_of(await collect(stream))) == 299
    await setup.idle()
    await client.close()


async def test_a_step_that_fails_ends_its_request_and_the_engine_goes_on(setup: Setup) -> None:
    client = await setup.client()
    stream = client.submit(request("a", [1, 2, 3], 300))
    await anext(stream)
    setup.backend.fail_next = 2
    outputs = await collect(stream)
    assert outputs[-1].error is not None and outputs[-1].error.kind == ErrorKind.INTERNAL
    after = await collect(client.submit(request("b", [1, 2, 3], 10)))
    assert tokens_of(after) == expected_tokens([1, 2, 3], 10, VOCAB)
    await setup.idle()
    await client.close()


async def test_a_defect_in_the_books_ends_streams_instead_of_hanging(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> None:
        raise AssertionError("a block is held twice")

    client = await setup.client()
    stream = client.submit(request("a", [1, 2, 3], 300))
    await anext(stream)
    monkeypatch.setattr(Scheduler, "commit", defect)
    async with asyncio.timeout(5):
        outputs = await collect(stream)
    error = outputs[-1].error
    assert error is not None and error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.INTERNAL)
    await client.close()


async def test_closing_the_engine_ends_streams(setup: Setup) -> None:
    client = await setup.client()
    stream = client.submit(request("a", [1, 2, 3], 500))
    await anext(stream)
    await asyncio.to_thread(setup.core.close)
    async with asyncio.timeout(5):
        outputs = await collect(stream)
    assert outputs[-1].finish_reason is FinishReason.CANCELLED
    if setup.kind == "inproc":
        with pytest.raises(TidemillError):
            client.submit(request("b", [1], 1))
    await client.close()


async def test_an_idle_engine_uses_no_cpu(setup: Setup) -> None:
    client = await setup.client()
    await collect(client.submit(request("a", [1, 2, 3], 5)))
    await asyncio.sleep(1.2)  # past the check of an idle engine's books
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.02
    assert tokens_of(await collect(client.submit(request("b", [1], 2)))) == expected_tokens(
        [1], 2, VOCAB
    )
    await client.close()


async def test_deadlines(setup: Setup) -> None:
    client = await setup.client()
    late = request("a", [1], 400, deadline=time.monotonic() - 1)
    outputs = await collect(client.submit(late))
    assert outputs[-1].error is not None and outputs[-1].error.kind == ErrorKind.TIMEOUT
    # Of the clock that nobody sets: on the calendar's, this was in 1970.
    in_time = request("b", [1], 4, deadline=time.monotonic() + 100)
    assert (await collect(client.submit(in_time)))[-1].error is None
    await client.close()


async def _socket_setup(path: str) -> tuple[EngineCore, asyncio.Server, object]:
    core, _ = fake_core()
    server, engine = await serve_core(core, path, DIGEST)
    return core, server, engine


async def test_handshake_refuses_what_does_not_match(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    core, server, _engine = await _socket_setup(path)
    with pytest.raises(TidemillError, match="configuration is digest"):
        await SocketClient.connect(path, "another")
    with pytest.raises(TidemillError, match="no engine listens"):
        await SocketClient.connect(str(tmp_path / "nobody"), DIGEST)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(frame(Hello(99, "x", DIGEST)))
    data = await reader.read()
    refused = to_client_decoder.decode(data[4:])
    assert isinstance(refused, Refused) and "protocol" in refused.message
    writer.close()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(frame(Hello(wire.PROTOCOL_VERSION, "another", DIGEST)))
    refused = to_client_decoder.decode((await reader.read())[4:])
    assert isinstance(refused, Refused) and "another" in refused.message
    writer.close()
    for garbage in (b"\xff\xff\xff\xff123", b"\x03\x00\x00\x00abc", b"GET / HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(garbage)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    client = await SocketClient.connect(path, DIGEST)
    assert client.info.model == "fake"
    await client.close()
    server.close()
    await asyncio.to_thread(core.close)


async def test_prompt_logprobs_in_parts_arrive_once_and_whole(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES", 500)
    client = await setup.client()
    prompt = [i % VOCAB for i in range(100)]
    outputs = await collect(client.submit(request("a", prompt, 4, n=3, prompt_logprobs=20)))
    [logprobs] = [o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None]
    assert logprobs[0] is None
    assert [p.token_id for p in logprobs[1:] if p is not None] == prompt[1:]
    assert all(o.token_ids for o in outputs)
    await client.close()


async def test_a_client_that_reads_nothing_is_dropped_and_a_slow_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_UNREAD_BYTES", 1000)
    monkeypatch.setattr(process, "UNREAD_SECONDS", 0.2)
    path = str(tmp_path / "s")
    core, server, _engine = await _socket_setup(path)
    reader, writer = await asyncio.open_unix_connection(path, limit=1000)
    writer.write(frame(Hello(wire.PROTOCOL_VERSION, build_id(), DIGEST)))
    await reader.readexactly(4)
    prompt = tuple(i % VOCAB for i in range(200))
    for i in range(60):
        asked = request(f"r{i}", prompt, 4, prompt_logprobs=20)
        writer.write(frame(Submit(resolve_seed(asked))))
    read = 0
    for _ in range(10):  # longer than the bound, always some of it
        await asyncio.sleep(0.1)
        read += len(await reader.readexactly(20_000))
    assert not reader.at_eof()
    await asyncio.sleep(1.5)  # and then nothing, but there is more
    async with asyncio.timeout(20):
        with suppress(ConnectionError):
            await reader.read()  # to the end: one that was not dropped would wait
    writer.close()
    server.close()
    await asyncio.to_thread(core.close)


async def test_the_engine_stops_when_its_owner_leaves(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    core, server, engine = await _socket_setup(path)
    guest = await SocketClient.connect(path, DIGEST)
    owner = await SocketClient.connect(path, DIGEST, owner=True)
    await guest.close()
    await asyncio.sleep(0.05)
    assert not engine.exit_code.done()
    await owner.close()
    async with asyncio.timeout(2):
        assert await engine.exit_code == 0
    server.close()
    await asyncio.to_thread(core.close)
