"""Connections to another server's engine: what is refused there, and one that falls silent."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from helpers.scripted_engine import fake_info

from tidemill.base.build import build_id
from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.request import ChoiceOutput, EngineRequest, RequestTimings
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import (
    PROTOCOL_VERSION,
    EngineStats,
    Outputs,
    Stats,
    StatsRequest,
    Submit,
    Welcome,
    frame,
    to_engine_decoder,
)
from tidemill.engine import remote
from tidemill.engine.remote import Clock, RemoteEngine
from tidemill.transfer.link import KEY_VARIABLE, Link, Role, key_of
from tidemill.transfer.listener import Listener

KEY = "a secret of these tests"
AHEAD = 1000.0


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


@contextmanager
def engine(
    answer: Callable[[Submit], Outputs] | None, received: list[EngineRequest]
) -> Iterator[str]:
    """An engine whose clock is ahead; without `answer` it says nothing after its welcome."""

    def serve(link: Link) -> None:
        assert link.role is Role.REQUESTS
        link.send(Clock(monotonic() + AHEAD, "digest"))
        found = link.detach()
        found.setblocking(True)
        with found, found.makefile("rb") as lines:
            while head := lines.read(4):
                message = to_engine_decoder.decode(lines.read(struct.unpack("<I", head)[0]))
                if isinstance(message, Submit):
                    received.append(message.request)
                    if answer is not None:
                        found.sendall(frame(answer(message)))
                elif isinstance(message, StatsRequest):
                    if answer is not None:
                        found.sendall(frame(Stats(message.nonce, EngineStats())))
                else:
                    told = (PROTOCOL_VERSION, build_id(), "digest", fake_info())
                    found.sendall(frame(Welcome(*told)))

    listener = Listener("127.0.0.1:0", key_of(KEY), serve)
    try:
        yield listener.address
    finally:
        listener.close()


def _request() -> EngineRequest:
    return EngineRequest(
        request_id="r",
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(seed=1, max_tokens=1),
        arrival=monotonic(),
        deadline=monotonic() + 5,
    )


def test_times_are_those_of_each_side_s_clock() -> None:
    request = _request()

    def answer(message: Submit) -> Outputs:
        there = message.request.arrival
        timings = RequestTimings(there, there + 1, 0.0, there + 2)
        return Outputs(
            (ChoiceOutput("r", 0, token_ids=(7,), timings=timings, scheduled=there + 1),)
        )

    async def ask() -> ChoiceOutput:
        came: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
        opened = await RemoteEngine.open(address, came.set_result, lambda reason: None)
        opened.submit(request)
        async with asyncio.timeout(20):
            found = await came
        await opened.close("done")
        return found.outputs[0]

    received: list[EngineRequest] = []
    with engine(answer, received) as address:
        output = asyncio.run(ask())
    assert received[0].arrival == pytest.approx(request.arrival + AHEAD, abs=1)
    assert request.deadline is not None
    assert received[0].deadline == pytest.approx(request.deadline + AHEAD, abs=1)
    assert output.timings is not None and output.timings.first_token == 0.0
    assert output.timings.received == pytest.approx(request.arrival)
    assert output.scheduled == pytest.approx(request.arrival + 1)


def test_an_engine_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SILENCE_SECONDS", 0.2)

    async def wait() -> str:
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await RemoteEngine.open(address, lambda outputs: None, lost.set_result)
        async with asyncio.timeout(20):
            return await lost

    with engine(None, []) as address:
        assert asyncio.run(wait()) == "it does not answer"


def test_where_nothing_listens_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def opening(address: str) -> TidemillError:
        with pytest.raises(TidemillError) as caught:
            asyncio.run(RemoteEngine.open(address, lambda outputs: None, lambda reason: None))
        return caught.value

    assert opening("127.0.0.1:1").kind is ErrorKind.UNAVAILABLE
    assert opening("nowhere").kind is ErrorKind.CONFIG
    monkeypatch.setenv(KEY_VARIABLE, "")
    assert KEY_VARIABLE in opening("127.0.0.1:1").message
