"""The engine's memory while it runs: resized, asleep and awake, with the same answers."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from helpers.drive import request
from helpers.fake_backend import FakeBackend, expected_tokens
from helpers.fake_engine import VOCAB, fake_core
from helpers.real_engine import real_engine

from tidemill.base.errors import ErrorKind
from tidemill.contract.request import EngineRequest, RequestError
from tidemill.contract.wire import (
    Control,
    Controlled,
    EngineMemory,
    EngineStats,
    MemoryRequest,
    Outputs,
    ResizeCache,
    Sleep,
    Stats,
    Wake,
)
from tidemill.engine.core import EngineCore

SIZE = 16
BLOCK_BYTES = 4 * SIZE  # of the fake engine


class Driver:
    """A client of a core, for one thread."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.client = core.connect(self.messages.put)
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, RequestError | None] = {}
        self.answers: list[Controlled] = []

    def submit(self, asked: EngineRequest) -> None:
        self.tokens[asked.request_id] = []
        self.core.submit(self.client, asked)

    def control(self, message: Control) -> Controlled:
        """Send a message and wait for its answer."""
        self.core.control(self.client, message)
        while not self.answers:
            self._receive()
        return self.answers.pop()

    def memory(self, message: Control) -> EngineMemory:
        answer = self.control(message)
        assert answer.memory is not None, answer.error
        return answer.memory

    def wait(self, name: str, tokens: int | None = None) -> None:
        """Until a request has so many tokens (None: has ended)."""
        while name not in self.ended and (tokens is None or len(self.tokens[name]) < tokens):
            self._receive()

    def stats(self) -> EngineStats:
        self.core.request_stats(self.client, 1)
        while True:
            message = self.messages.get(timeout=20)
            if isinstance(message, Stats):
                return message.stats
            self._take(message)

    def _receive(self) -> None:
        self._take(self.messages.get(timeout=20))

    def _take(self, message: object) -> None:
        if isinstance(message, Controlled):
            self.answers.append(message)
        elif isinstance(message, Outputs):
            for output in message.outputs:
                self.tokens[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    self.ended[output.request_id] = output.error


@contextmanager
def fake(**changes: object) -> Iterator[tuple[Driver, FakeBackend]]:
    core, backend = fake_core(num_blocks=64, max_model_len=8 * SIZE, **changes)  # type: ignore[arg-type]
    try:
        yield Driver(core), backend
    finally:
        core.close()


def _prompt(i: int, blocks: int = 2) -> list[int]:
    return [10 + (7 * i + j) % 900 for j in range(blocks * SIZE + 3)]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cache_shrinks_and_grows_under_streams(depth: int) -> None:
    with fake(step_seconds=0.0005, depth=depth) as (driver, backend):
        names = [f"r{i}" for i in range(8)]
        for i, name in enumerate(names):
            driver.submit(request(name, _prompt(i), 60))
        for name in names:
            driver.wait(name, 5)
        for nonce, blocks in enumerate((8, 64, 20, 40, 9, 64, 8)):
            memory = driver.memory(ResizeCache(nonce, blocks * BLOCK_BYTES))
            assert memory.kv_blocks == blocks
            assert memory.kv >= blocks * BLOCK_BYTES and memory.kv_used <= memory.kv
        for i, name in enumerate(names):
            driver.wait(name)
            assert driver.ended[name] is None
            assert driver.tokens[name] == expected_tokens(_prompt(i), 60, VOCAB)
        # The last blocks beyond the size were released by now, and their pages with them.
        memory = driver.memory(MemoryRequest(0))
        assert (memory.kv, memory.kv_used) == (8 * BLOCK_BYTES, 0)
        assert backend.given_back[-1] == (0, list(range(8, 64)))
        driver.core._scheduler.check()


def test_the_oldest_prefixes_go_first_and_the_others_are_still_found() -> None:
    with fake() as (driver, _):
        for i in range(8):  # fills 24 blocks, 16 of which can be found
            driver.submit(request(f"r{i}", _prompt(i), 2))
            driver.wait(f"r{i}")
        memory = driver.memory(ResizeCache(1, 8 * BLOCK_BYTES))
        assert memory.kv_cached == memory.kv == 8 * BLOCK_BYTES
        for i, found in ((7, 2 * SIZE), (6, 2 * SIZE), (0, 0), (3, 0)):
            before = driver.stats().cached_tokens
            driver.submit(request(f"again{i}", _prompt(i), 2))
            driver.wait(f"again{i}")
            assert driver.tokens[f"again{i}"] == expected_tokens(_prompt(i), 2, VOCAB)
            assert driver.stats().cached_tokens - before == found
        assert driver.stats().blocks_total == 8


def test_the_context_stays_whatever_is_asked_for() -> None:
    with fake() as (driver, _):
        memory = driver.memory(ResizeCache(1, 1))
        assert memory.kv_blocks == 8 and memory.kv == memory.kv_least == 8 * BLOCK_BYTES
        long = request("long", _prompt(0, 3), 8 * SIZE - 3 * SIZE - 3)
        driver.submit(long)
        driver.wait("long")
        assert driver.ended["long"] is None and len(driver.tokens["long"]) == 5 * SIZE - 3
        assert driver.memory(ResizeCache(1, 10**9)).kv_blocks == 64
        assert memory.kv_most == 64 * BLOCK_BYTES


@pytest.mark.parametrize("keep", [True, False])
def test_asleep_it_takes_no_requests_and_awake_it_answers_the_same(keep: bool) -> None:
    with fake(step_seconds=0.001) as (driver, backend):
        driver.submit(request("busy", _prompt(0), 40))
        driver.wait("busy", 3)
        answer = driver.control(Sleep(1))
        assert answer.error is not None and answer.error.kind == ErrorKind.UNAVAILABLE
        assert answer.error.retryable and "requests" in answer.error.message
        driver.wait("busy")
        memory = driver.memory(Sleep(2, keep_prefixes=keep))
        assert memory.asleep and not backend.awake
        assert (memory.kv_cached > 0) == keep
        driver.submit(request("early", _prompt(0), 4))
        driver.wait("early")
        error = driver.ended["early"]
        assert error is not None and error.kind == ErrorKind.INTERNAL and "wake" in error.message
        assert driver.memory(Sleep(3)).asleep, "asking twice changes nothing"
        memory = driver.memory(Wake(4))
        assert not memory.asleep and backend.awake
        before = driver.stats().cached_tokens
        driver.submit(request("again", _prompt(0), 40))
        driver.wait("again")
        assert driver.tokens["again"] == driver.tokens["busy"]
        assert driver.tokens["again"] == expected_tokens(_prompt(0), 40, VOCAB)
        assert driver.stats().cached_tokens - before == (2 * SIZE if keep else 0)


@pytest.mark.parametrize("model", ["plain", "recurrent", "mixers beside"])
def test_real_weights_and_blocks_survive(model: str) -> None:
    engine = real_engine("native", model=model, num_blocks=120, max_num_seqs=8)
    try:
        driver = Driver(engine._core)
        texts = [[3 + (5 * i + j) % 100 for j in range(40 + 9 * i)] for i in range(5)]

        def ask(tag: str) -> list[list[int]]:
            for i, text in enumerate(texts):
                driver.submit(request(f"{tag}{i}", text, 30))
            for i in range(len(texts)):
                driver.wait(f"{tag}{i}")
            return [driver.tokens[f"{tag}{i}"] for i in range(len(texts))]

        want = ask("calm")
        per_block = driver.memory(MemoryRequest(0)).kv // 120
        for blocks in (16, 120, 30, 16):
            driver.memory(ResizeCache(1, blocks * per_block))
            assert ask(f"at {blocks} of {driver.stats().steps}") == want
        # No file has these weights.
        answer = driver.control(Sleep(1))
        assert answer.error is not None and answer.error.kind == ErrorKind.UNSUPPORTED
        assert answer.error.param == "packed_cache" and "unload" in answer.error.message
        assert ask("still awake") == want
    finally:
        engine.close()
