"""The supervised engine: killed, stopped and poisoned, it answers as if nothing had been."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil
import pytest
from helpers.faults import fault_environment
from helpers.tiny_checkpoints import make_checkpoint

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, Pooling
from tidemill.contract.sampling import SamplingParams
from tidemill.engine import spawn, supervisor
from tidemill.engine.restarts import RestartPolicy
from tidemill.engine.streams import Stream
from tidemill.engine.supervisor import Recovery, SupervisedEngine, Supervision

POISON = 77
VOCAB = 100


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = make_checkpoint("qwen3-q", tmp_path_factory.mktemp("model") / "tiny")
    return EngineConfig(
        model=str(folder), served_name="tiny", kv_memory=8 * 2**20, threads=1, max_num_seqs=64
    )


class Engine:
    """A supervised engine, and what was observed of it."""

    def __init__(self, engine: SupervisedEngine, seen: list[Recovery]) -> None:
        self.engine = engine
        self.seen = seen
        self.received = 0  # tokens, by `collect`

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait until the next engine is there."""
        before = len(self.seen)
        os.kill(self.engine.pid, number)
        async with asyncio.timeout(40):
            while len(self.seen) == before:
                await asyncio.sleep(0.01)

    async def told(self, tokens: float) -> None:
        """Wait until so many tokens have been received since it was opened."""
        while self.received < tokens:
            await asyncio.sleep(0.001)

    async def collect(self, request: EngineRequest) -> list[ChoiceOutput]:
        """All outputs of a request, counted."""
        outputs = []
        async for output in self.engine.submit(request):
            self.received += len(output.token_ids)
            outputs.append(output)
        return outputs


async def _open(config: EngineConfig, **changes: Any) -> Engine:
    seen: list[Recovery] = []
    supervision = Supervision(on_recovery=seen.append, **changes)
    engine = await SupervisedEngine.open(config, log_level="error", supervision=supervision)
    return Engine(engine, seen)


class Opens(Protocol):
    """Opens a supervised engine, which is closed when the test ends, however it does."""

    async def __call__(self, config: EngineConfig, **changes: Any) -> Engine: ...


@pytest.fixture
async def opens() -> AsyncIterator[Opens]:
    made: list[Engine] = []

    async def open_one(config: EngineConfig, **changes: Any) -> Engine:
        made.append(await _open(config, **changes))
        return made[-1]

    yield open_one
    for one in made:
        await one.engine.close()


@pytest.fixture
async def engine(config: EngineConfig, opens: Opens) -> Engine:
    return await opens(config, stall_timeout=1.0)


def _request(i: int, tag: str, max_tokens: int = 1500, **sampling: Any) -> EngineRequest:
    rng = random.Random(i)
    prompt = tuple(rng.randrange(POISON) for _ in range(rng.randrange(2, 90)))
    settings: dict[str, Any] = {"temperature": 0.9 if i % 3 else 0.0, "seed": i, **sampling}
    return EngineRequest(
        request_id=f"{tag}-{i}",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True, **settings),
        cache_salt=tag,
    )


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 3, "temperature": 1.0},
    {"logprobs": 2},
    {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"prompt_logprobs": 1, "n": 2, "temperature": 0.7},
    {"logit_bias": {5: 4.0}, "min_tokens": 5},
)


def _batch(tag: str, count: int = 12) -> list[EngineRequest]:
    return [_request(i, tag, **VARIANTS[i % len(VARIANTS)]) for i in range(count)]


async def _collect(stream: AsyncIterator[ChoiceOutput]) -> list[ChoiceOutput]:
    return [output async for output in stream]


def _answer(outputs: list[ChoiceOutput]) -> list[object]:
    """What a client got, choice by choice, without how it was cut into messages."""
    answer: list[object] = []
    for choice in sorted({o.choice for o in outputs}):
        mine = [o for o in outputs if o.choice == choice]
        answer.append(
            (
                [t for o in mine for t in o.token_ids],
                [p for o in mine for p in o.logprobs or ()],
                [o.prompt_logprobs for o in mine if o.prompt_logprobs is not None],
                [o.cached_tokens for o in mine if o.cached_tokens is not None],
                [(o.finish_reason, o.stop_token, o.error) for o in mine if o.finish_reason],
            )
        )
    return answer


async def _all(engine: Engine, batch: list[EngineRequest]) -> list[list[object]]:
    outputs = await asyncio.gather(*map(engine.collect, batch))
    return [_answer(one) for one in outputs]


async def test_killed_again_and_again_the_answers_are_the_same(engine: Engine) -> None:
    want = await _all(engine, _batch("calm"))
    tokens, found = engine.received, [False]
    # How many a kill finds depends on how busy the machine is. On a very busy one it may find that
    # the engine is done, and only its outputs are still on their way: again then.
    for storm in range(3):
        before, deaths = engine.received, len(engine.seen)
        got = asyncio.ensure_future(_all(engine, _batch(f"storm{storm}")))
        for share in (0.01, 0.2, 0.25, 0.6):
            await engine.told(before + share * tokens)
            await engine.kill()
        assert await got == want
        found = [bool(recovery.replayed) for recovery in engine.seen[deaths:]]
        if all(found):
            break
    assert found == [True] * 4, "a kill came too late"
    stats = await engine.engine.stats()
    assert stats.blocks_used == stats.running == stats.queued == 0


async def test_a_beam_search_is_searched_again(engine: Engine) -> None:
    def batch(tag: str) -> list[EngineRequest]:
        search = {"n": 3, "beam_width": 4, "temperature": None, "logprobs": 1}
        return [_request(1, tag, 300, **search), _request(3, tag)]

    want = await _all(engine, batch("calm"))
    before = engine.received
    got = asyncio.ensure_future(_all(engine, batch("storm")))
    for tokens in (20, 150):
        await engine.told(before + tokens)
        await engine.kill()
    assert await got == want


async def test_a_stopped_engine_is_replaced(engine: Engine) -> None:
    want = await _all(engine, _batch("calm", 24))
    before = engine.received
    got = asyncio.ensure_future(_all(engine, _batch("storm", 24)))
    explained = engine.engine.submit(msgspec.structs.replace(_request(99, "x"), explain=True))
    await engine.told(1.02 * before)  # six requests are over in 0.1 s, before they are told
    await engine.kill(signal.SIGSTOP)
    assert [recovery.cause for recovery in engine.seen] == ["stall"]
    assert await got == want
    await _collect(explained)
    assert isinstance(explained, Stream) and explained.facts is not None
    assert [life.cause for life in explained.facts.lives] == ["stall", ""]


async def test_an_idle_engine_that_is_stopped_is_replaced_when_asked(engine: Engine) -> None:
    os.kill(engine.engine.pid, signal.SIGSTOP)
    await asyncio.sleep(1.5)
    assert not engine.seen, "nobody waited for anything"
    request = _request(1, "a", 5)
    async with asyncio.timeout(40):
        outputs = await _collect(engine.engine.submit(request))
    assert outputs[-1].finish_reason is FinishReason.LENGTH and len(engine.seen) == 1


async def test_requests_and_cancels_while_there_is_no_engine(engine: Engine) -> None:
    client = engine.engine
    running = client.submit(_request(1, "running", n=2))
    first = await anext(running)
    os.kill(client.pid, signal.SIGKILL)
    while client.problem is None:
        await asyncio.sleep(0.001)
    assert "being replaced" in client.problem
    with pytest.raises(TidemillError, match="being replaced"):
        await client.stats()
    late = client.submit(_request(2, "late", 7))
    gone = client.submit(_request(3, "gone", 7))
    client.cancel("gone-3")
    client.cancel("running-1", first.choice, "stop")
    assert [o.finish_reason for o in await _collect(gone)] == [FinishReason.CANCELLED]
    assert len([t for o in await _collect(late) for t in o.token_ids]) == 7
    rest = await _collect(running)
    ends = {o.choice: o.finish_reason for o in rest if o.finish_reason}
    assert ends == {first.choice: FinishReason.STOP, 1 - first.choice: FinishReason.LENGTH}
    assert client.problem is None


async def test_waiting_requests_are_bounded(config: EngineConfig, opens: Opens) -> None:
    engine = await opens(config, max_waiting=2)
    client = engine.engine
    os.kill(client.pid, signal.SIGKILL)
    while client.problem is None:
        await asyncio.sleep(0.001)
    waiting = [client.submit(_request(i, "w", 3)) for i in range(2)]
    with pytest.raises(TidemillError, match="already wait for it") as caught:
        client.submit(_request(2, "w", 3))
    assert caught.value.kind is ErrorKind.OVERLOADED and caught.value.retryable
    for stream in waiting:
        assert (await _collect(stream))[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("fault", ["abort", "hang"])
async def test_poison_is_found_and_the_innocent_go_on(
    config: EngineConfig,
    opens: Opens,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    for name, value in fault_environment({fault: POISON}).items():
        monkeypatch.setenv(name, value)
    engine = await opens(config, stall_timeout=1.0)
    client = engine.engine
    want = await _all(engine, _batch("calm", 5))
    got = asyncio.ensure_future(_all(engine, _batch("storm", 5)))
    await asyncio.sleep(0.05)
    poison = msgspec.structs.replace(_request(9, "p"), prompt_token_ids=(1, 2, POISON, 4))
    async with asyncio.timeout(100):
        (end,) = await _collect(client.submit(poison))
        assert await got == want
        # Convicted by the last death, it ends before the engine is replaced, which nobody else
        # waits for where the storm was over before.
        while client.problem is not None:
            await asyncio.sleep(0.01)
    assert end.error is not None and end.error.kind == ErrorKind.INTERNAL
    assert len(engine.seen) == 4, "two deaths together, two alone"
    mark = end.error.message.rsplit(" ", 1)[1]
    assert mark in caplog.text and "p-9" in caplog.text
    again = msgspec.structs.replace(poison, request_id="again")
    with pytest.raises(TidemillError, match=mark):
        client.submit(again)
    assert len(engine.seen) == 4


async def test_many_poisons_at_once_do_not_end_the_server(
    config: EngineConfig, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fault_environment({"abort": POISON}).items():
        monkeypatch.setenv(name, value)
    engine = await opens(config, restarts=lambda: RestartPolicy(most=8, fruitless=7))
    client = engine.engine
    poisons = [
        msgspec.structs.replace(_request(i, "p"), prompt_token_ids=(i, POISON)) for i in range(5)
    ]
    async with asyncio.timeout(100):
        ends = await asyncio.gather(*(_collect(client.submit(one)) for one in poisons))
        assert all(e[-1].error is not None and "crashed the engine" in e[-1].error.message
                   for e in ends)  # fmt: skip
        good = await _collect(client.submit(_request(1, "good", 3)))
    assert good[-1].finish_reason is FinishReason.LENGTH
    # Two together and two for each alone; two more where one came too late for the others' step.
    least = 2 + 2 * len(poisons)
    assert least <= len(engine.seen) <= least + 2 and not client.failed.done()


@pytest.mark.parametrize(("fault", "deaths"), [("message", 4), ("receive", 6)])
async def test_what_ends_engines_without_being_computed_is_found_too(
    config: EngineConfig, opens: Opens, fault: str, deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fault_environment({fault: POISON}).items():
        monkeypatch.setenv(name, value)
    engine = await opens(config)
    client = engine.engine
    want = await _all(engine, _batch("calm", 3))
    got = asyncio.ensure_future(_all(engine, _batch("storm", 3)))
    await asyncio.sleep(0.05)
    # Its only output is its last one: no step of it computes while that is told.
    poison = msgspec.structs.replace(_request(9, "p", 1), prompt_token_ids=(1, 2, POISON, 4))
    async with asyncio.timeout(100):
        (end,) = await _collect(client.submit(poison))
        assert await got == want
        while client.problem is not None:
            await asyncio.sleep(0.01)
    assert end.error is not None and end.error.kind == ErrorKind.INTERNAL
    assert len(engine.seen) == deaths


async def test_it_is_given_up_in_the_end(config: EngineConfig, opens: Opens) -> None:
    engine = await opens(config, restarts=lambda: RestartPolicy(most=2))
    client = engine.engine
    for _ in range(2):
        await engine.kill()
    stream = client.submit(_request(1, "a", 1500))
    await anext(stream)
    os.kill(client.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        error = await client.failed
        outputs = await _collect(stream)
    assert "too often" in error.message and "the last time it was ended by SIGKILL" in error.message
    assert outputs[-1].error is not None and outputs[-1].error.kind == ErrorKind.UNAVAILABLE
    with pytest.raises(TidemillError, match="too often"):
        client.submit(_request(2, "a", 3))


async def test_vectors_are_progress_as_tokens_are(config: EngineConfig, opens: Opens) -> None:
    engine = await opens(config, restarts=lambda: RestartPolicy(fruitless=1))
    for i in range(3):
        request = msgspec.structs.replace(_request(i, "v", 1), pooling=Pooling("mean"))
        (vector,) = await _collect(engine.engine.submit(request))
        assert vector.pooled and not vector.token_ids
        await engine.kill()
    assert not engine.engine.failed.done()


async def test_a_replaced_model_is_noticed(
    config: EngineConfig, opens: Opens, tmp_path: Path
) -> None:
    folder = make_checkpoint("qwen3-q", tmp_path / "tiny")
    engine = await opens(msgspec.structs.replace(config, model=str(folder)))
    client = engine.engine
    make_checkpoint("qwen3", tmp_path / "other")
    for file in (tmp_path / "other").iterdir():
        (folder / f"{file.name}.new").write_bytes(file.read_bytes())
        os.replace(folder / f"{file.name}.new", folder / file.name)
    os.kill(client.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        error = await client.failed
    assert "has been replaced" in error.message and "restart the server" in error.message
    assert len(engine.seen) == 0


async def test_deadlines_pass_while_an_engine_loads(
    config: EngineConfig, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await opens(config)
    loaded = asyncio.Event()

    async def start(*args: Any, **settings: Any) -> spawn.EngineProcess:
        await loaded.wait()
        return await spawn.start_engine(*args, **settings)

    monkeypatch.setattr(supervisor, "start_engine", start)
    client = engine.engine
    deadline = time.monotonic() + 0.3
    late = msgspec.structs.replace(_request(1, "late"), deadline=deadline)
    running, patient = client.submit(late), client.submit(_request(2, "patient", 50))
    os.kill(client.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        end = (await _collect(running))[-1]
        assert end.error is not None and end.error.kind == ErrorKind.TIMEOUT
        loaded.set()
        assert (await _collect(patient))[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("kind", [ErrorKind.MODEL_FILE, ErrorKind.RESOURCE])
async def test_a_start_that_must_fail_again_is_not_tried_again(
    config: EngineConfig, opens: Opens, kind: ErrorKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await opens(config)
    starts = []

    async def start(*args: Any, **settings: Any) -> spawn.EngineProcess:
        starts.append(args)
        if len(starts) == 1:
            raise TidemillError(kind, "it cannot be")
        return await spawn.start_engine(*args, **settings)

    monkeypatch.setattr(supervisor, "start_engine", start)
    stream = engine.engine.submit(_request(1, "a", 300))
    await anext(stream)
    os.kill(engine.engine.pid, signal.SIGKILL)
    async with asyncio.timeout(40):
        end = (await _collect(stream))[-1]
    if kind is ErrorKind.RESOURCE:  # memory may be free the next time
        assert end.finish_reason is FinishReason.LENGTH and len(starts) == 2
        return
    assert end.error is not None and end.error.kind == ErrorKind.UNAVAILABLE
    assert "it cannot be" in end.error.message and len(starts) == 1
    assert "it cannot be" in engine.engine.failed.result().message


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
async def test_starts_that_fail_alike_are_not_tried_for_a_minute(
    config: EngineConfig, opens: Opens, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await opens(config, restarts=lambda: RestartPolicy(fruitless=5))
    starts = []

    async def start(*args: Any, **settings: Any) -> spawn.EngineProcess:
        starts.append(args)
        words = f"the engine process {spawn.ending(-number)} before it was ready"
        raise TidemillError(ErrorKind.UNAVAILABLE, words, retryable=True)

    monkeypatch.setattr(supervisor, "start_engine", start)
    os.kill(engine.engine.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        error = await engine.engine.failed
    if number is signal.SIGKILL:  # memory may be free the next time
        assert len(starts) == 5 and "too often" in error.message
    else:
        assert len(starts) == 3 and "could not start" in error.message
    assert spawn.ending(-number) in error.message


async def test_nothing_grows_over_restarts(engine: Engine) -> None:
    me = psutil.Process()
    for _ in range(2):
        await engine.kill()
    await asyncio.sleep(0.3)
    before = (me.num_fds(), len(me.children()), me.num_threads())
    for i in range(4):
        request = _request(i, "r", 400)
        running = asyncio.ensure_future(_collect(engine.engine.submit(request)))
        await asyncio.sleep(0.05)
        await engine.kill()
        await running
    await asyncio.sleep(0.3)
    assert (me.num_fds(), len(me.children()), me.num_threads()) == before


async def test_nothing_is_left_behind(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    temporary = tempfile.TemporaryDirectory(prefix="t")  # short, as a socket's path has to be
    request.addfinalizer(temporary.cleanup)
    monkeypatch.setattr(tempfile, "tempdir", temporary.name)
    engine = await _open(config)
    [folder] = Path(temporary.name).iterdir()
    pid = engine.engine.pid
    await engine.kill()
    await engine.engine.close()
    assert not folder.exists() and not list(Path(temporary.name).iterdir())
    assert not psutil.pid_exists(pid) and not psutil.pid_exists(engine.engine.pid)


async def test_an_engine_stopped_while_it_loads_is_no_endless_wait(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "LOAD_STALL_SECONDS", 2.0)
    others = set(psutil.Process().children())  # servers of other tests
    starting = asyncio.ensure_future(_open(config))
    while not (ours := set(psutil.Process().children()) - others):
        await asyncio.sleep(0.005)
    ours.pop().suspend()
    async with asyncio.timeout(30):
        with pytest.raises(TidemillError, match="was ended by SIGKILL") as caught:
            await starting
    assert caught.value.kind is ErrorKind.UNAVAILABLE
