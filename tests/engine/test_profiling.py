"""A profile of a running engine: begun and ended, one at a time, over when its client leaves."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import pytest
from helpers.drive import request
from helpers.real_engine import real_core
from helpers.tiny_checkpoints import make_checkpoint

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.profile import EngineProfile, MachineRates
from tidemill.contract.wire import EndProfile, Outputs, Profiled, StartProfile
from tidemill.engine.core import EngineCore
from tidemill.engine.profiled import take_profile
from tidemill.engine.supervisor import SupervisedEngine
from tidemill.executor.base import Executor


class Client:
    """A client of a core, for one thread."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.id = core.connect(self.messages.put)

    def start(self, nonce: int, **given: bool) -> Profiled:
        self.core.profile(self.id, StartProfile(nonce, **given))
        return self.answer()

    def end(self, nonce: int, begun: int) -> Profiled:
        self.core.profile(self.id, EndProfile(nonce, begun))
        return self.answer()

    def answer(self) -> Profiled:
        while True:
            message = self.messages.get(timeout=20)
            if isinstance(message, Profiled):
                return message

    def generate(self, name: str, tokens: int) -> list[int]:
        self.core.submit(self.id, request(name, [1, 2, 3], tokens))
        made: list[int] = []
        while True:
            message = self.messages.get(timeout=20)
            assert isinstance(message, Outputs)
            for output in message.outputs:
                made += output.token_ids
                if output.finish_reason is not None:
                    return made


class Rated:
    """An executor on another machine."""

    def __init__(self, executor: Executor, rates: Callable[[], MachineRates]) -> None:
        self._executor = executor
        self.machine_rates = rates

    def __getattr__(self, name: str) -> object:
        return getattr(self._executor, name)


def wait_loaded(core: EngineCore) -> None:
    deadline = time.monotonic() + 20
    while len(set(core.loaded_bytes())) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)


@contextmanager
def rated_core(rates: Callable[[], MachineRates]) -> Iterator[EngineCore]:
    core = real_core("native", wrap=lambda executor: cast("Executor", Rated(executor, rates)))
    wait_loaded(core)
    try:
        yield core
    finally:
        core.close()


@pytest.fixture
def core(request: pytest.FixtureRequest) -> EngineCore:
    found = real_core(getattr(request, "param", "native"), threads=2)
    request.addfinalizer(found.close)
    wait_loaded(found)
    return found


def found(answer: Profiled) -> EngineProfile:
    assert answer.profile is not None, answer.error
    return answer.profile


def test_a_profile_has_the_steps_between_its_ends(core: EngineCore) -> None:
    client = Client(core)
    before = client.generate("a", 20)
    assert client.start(1) == Profiled(1)
    begun = time.monotonic()
    assert client.generate("b", 20) == before
    time.sleep(0.05)
    profile = found(client.end(2, 1))
    assert profile.seconds == pytest.approx(time.monotonic() - begun, abs=0.1)
    assert profile.counters is not None and profile.steps == profile.counters.steps == 20
    assert profile.counters.tokens == 3 + 19 and profile.rates is None
    assert 0.04 < profile.idle_seconds < profile.seconds
    shares = profile.idle_seconds + profile.waiting_seconds + profile.submitting_seconds
    assert profile.waiting_seconds > 0 and shares <= profile.seconds
    assert client.generate("c", 20) == before


def test_drafters_are_told_apart() -> None:
    with closing(real_core("native", speculate="lookup")) as core:
        wait_loaded(core)
        client = Client(core)
        client.start(1)
        core.submit(client.id, request("a", [1, 2, 3] * 9, 30, speculation="lookup"))
        client.generate("b", 40)
        profile = found(client.end(2, 1))
    assert profile.drafting.keys() == {"lookup"}
    assert 0 < profile.drafting["lookup"] < profile.waiting_seconds


def test_an_idle_engine_is_idle_and_a_profile_ends_once(core: EngineCore) -> None:
    client = Client(core)
    client.start(1)
    time.sleep(0.05)
    profile = found(client.end(2, 1))
    assert profile.idle_seconds == pytest.approx(profile.seconds, rel=0.2)
    assert profile.counters is not None and profile.counters.kernels == ()
    again = client.end(3, 1)
    assert again.error is not None and again.error.kind is ErrorKind.INTERNAL


def test_one_at_a_time_and_whoever_leaves_ends_theirs(core: EngineCore) -> None:
    one, other = Client(core), Client(core)
    one.start(1)
    for client in (one, other):
        refused = client.start(7).error
        assert refused is not None and refused.kind is ErrorKind.OVERLOADED and refused.retryable
    assert other.end(8, 1).error is not None  # it is not the other's
    core.disconnect(one.id)
    assert other.start(9) == Profiled(9)
    other.generate("a", 3)
    assert found(other.end(10, 9)).steps == 3


def test_rates_are_measured_beside_the_steps_once() -> None:
    measured: list[str] = []
    go = threading.Event()

    def rates() -> MachineRates:
        measured.append(threading.current_thread().name)
        assert go.wait(20)
        return MachineRates(read_bandwidth=1e9)

    with rated_core(rates) as core:
        client = Client(core)
        core.profile(client.id, StartProfile(1, rates=True))
        client.generate("a", 5)  # steps go on
        go.set()
        assert client.answer() == Profiled(1)
        assert found(client.end(2, 1)).rates == MachineRates(read_bandwidth=1e9)
        client.start(3, rates=True)
        assert found(client.end(4, 3)).rates is not None and len(measured) == 1
        assert measured == ["tidemill-rates"]


def test_one_who_leaves_while_the_machine_is_measured_begins_nothing() -> None:
    go = threading.Event()

    def rates() -> MachineRates:
        assert go.wait(20)
        raise RuntimeError("on purpose")

    with rated_core(rates) as core:
        client = Client(core)
        core.profile(client.id, StartProfile(1, rates=True))
        assert client.end(2, 1).error is not None
        go.set()
        assert client.start(3) == Profiled(3)  # and a measurement that fails is none
        assert found(client.end(4, 3)).rates is None


@pytest.mark.parametrize("core", ["torch"], indirect=True)
def test_a_backend_without_counters_tells_the_engines_share(core: EngineCore) -> None:
    client = Client(core)
    client.start(1, rates=True)
    client.generate("a", 4)
    profile = found(client.end(2, 1))
    assert profile.counters is None and profile.rates is None
    assert profile.steps == 4 and 0 < profile.waiting_seconds <= profile.seconds


async def eventually(test: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not test():
            await asyncio.sleep(0.01)


async def test_of_an_engine_in_its_own_process(tmp_path: Path) -> None:
    folder = make_checkpoint("qwen3-q", tmp_path / "tiny")
    config = EngineConfig(model=str(folder), served_name="tiny", kv_memory=2**22, threads=1)
    engine = await SupervisedEngine.open(config)
    try:
        await eventually(
            lambda: engine.loaded is not None and engine.loaded.loaded == engine.loaded.total
        )
        taking = asyncio.create_task(take_profile(engine, 0.5, events=50, rates=False))
        await asyncio.sleep(0.1)
        outputs = [one async for one in engine.submit(request("a", [1, 2, 3], 5))]
        profile = await taking
        assert sum(len(one.token_ids) for one in outputs) == 5
        assert profile.counters is not None and profile.counters.steps == 5
        assert len(profile.counters.events) == 50 * 32
        # A caller that is cancelled ends its profile, so that the next may begin.
        taking = asyncio.create_task(take_profile(engine, 60, rates=False))
        await asyncio.sleep(0.1)
        with pytest.raises(TidemillError, match="one at a time"):
            await take_profile(engine, 0.01, rates=False)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await take_profile(engine, 0.01, rates=False)
        # An engine that dies ends it, too.
        taking = asyncio.create_task(take_profile(engine, 60, rates=False))
        await asyncio.sleep(0.1)
        engine.connection.abort("on purpose")
        with pytest.raises(TidemillError, match="ended while"):
            await taking
    finally:
        await engine.close()
