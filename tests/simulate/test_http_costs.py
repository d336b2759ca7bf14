"""What requests take beside their steps, from what answers say and from when they arrive."""

from __future__ import annotations

import asyncio
import json

import pytest

from tidemill.base.errors import TidemillError
from tidemill.simulate.costs import HostSeconds
from tidemill.simulate.http_costs import Answered, Answers, measure_http

ENGINE = HostSeconds(step=0.0004, row=0.0001)


def answered(prompt: int, *, steps: float, arrivals: tuple[float, ...] = ()) -> Answered:
    before, queue = 0.002 + 1e-6 * prompt, 0.0008
    first = before + queue + steps + 0.0005 + 0.003  # the loop, and the way to the client
    return Answered(prompt, before, queue, first, steps, arrivals)


def test_costs_are_those_that_made_the_answers() -> None:
    answers = Answers()
    for steps in (0.010, 0.150, 0.030):  # whatever the steps take
        answers.alone += [answered(prompt, steps=steps) for prompt in (10, 100, 1000)]
    # Three streams, whose chunks of one step come 0.2 ms after one another.
    answers.together = [
        [
            answered(8, steps=0.01, arrivals=tuple(0.02 * k + 0.0002 * place for k in range(9)))
            for place in range(3)
        ]
    ]
    found = answers.costs(ENGINE)
    assert found.step == ENGINE.step and found.row == ENGINE.row
    assert found.request == pytest.approx(0.002, rel=1e-3)
    assert found.prompt_token == pytest.approx(1e-6, rel=1e-3)
    assert found.submit == pytest.approx(0.0003)
    assert found.chunk == pytest.approx(0.0002)
    assert found.deliver == pytest.approx(0.003 - 0.0002)


def test_nothing_is_negative_and_nothing_is_made_up() -> None:
    with pytest.raises(TidemillError, match="no request was measured"):
        Answers().costs(ENGINE)
    answers = Answers()
    answers.alone = [Answered(5, 0.001, 0.0, 0.0105, 0.01, (1.0,))] * 3
    found = answers.costs(ENGINE)
    assert found.deliver == found.submit == found.chunk == 0.0


TIMINGS = [("read", 0.001), ("prepare", 0.002), ("queue", 0.0006), ("prefill", 0.02),
           ("decode", 0.5), ("deliver", 0.5)]  # fmt: skip


async def respond(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bodies: list[dict[str, object]],
    *, says: bool,
) -> None:  # fmt: skip
    """Answers every request with two chunks at once."""
    while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
        length = int(head.partition("content-length:")[2].split()[0])
        body = json.loads(await reader.readexactly(length))
        bodies.append(body)
        last: dict[str, object] = {"choices": [], "usage": {"prompt_tokens": 7}}
        if says:
            phases = [{"name": name, "seconds": seconds} for name, seconds in TIMINGS]
            last["timings"] = {"phases": phases}
        events = [{"choices": [{"text": "a"}]}] * 2 + [last]
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            f"content-length: {len(data)}\r\n\r\n{data}".encode()
        )


def measured(*, says: bool) -> tuple[Answers, list[dict[str, object]]]:
    bodies: list[dict[str, object]] = []

    async def run() -> Answers:
        server = await asyncio.start_server(
            lambda reader, writer: respond(reader, writer, bodies, says=says), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        try:
            return await measure_http(f"http://127.0.0.1:{port}/v1", 0.0, longest=400)
        finally:
            server.close()

    return asyncio.run(run()), bodies


def test_a_server_is_asked_alone_and_by_several_streams() -> None:
    answers, bodies = measured(says=True)
    one = answers.alone[0]
    assert (one.prompt, one.queue, one.steps) == (7, 0.0006, 0.02)
    assert one.before == pytest.approx(0.003) and one.first > 0 and len(one.arrivals) == 2
    assert [len(streams) for streams in answers.together] == [8]
    # Prompts that leave room for an answer, each sent twice: the second time it is cached.
    lengths = [len(str(body["prompt"]).split()) for body in bodies[1:-8]]
    assert lengths == [8, 8, 64, 64, 160, 160]
    prompts = [str(body["prompt"]) for body in bodies[1:]]
    assert len(set(prompts)) == 3 + 8 and all(body["ignore_eos"] for body in bodies)


def test_a_server_that_does_not_say_where_time_went_is_refused() -> None:
    with pytest.raises(TidemillError, match="do not say where their time went"):
        measured(says=False)
