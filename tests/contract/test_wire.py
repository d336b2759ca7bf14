"""Messages survive the socket in any fragmentation; a corrupt length is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.contract import wire
from tidemill.contract.program import Forced, FreeText, Grammar, OutputProgram
from tidemill.contract.request import (
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    RequestError,
    RequestTimings,
    TokenLogprob,
)
from tidemill.contract.sampling import SamplingParams

REQUEST = EngineRequest(
    request_id="r",
    prompt_token_ids=(1, 2, 3),
    sampling=SamplingParams(temperature=0.0, logit_bias={5: -100.0}, seed=2**63 - 1),
    program=OutputProgram(
        (
            FreeText(((7,), (8, 9)), 9, then=(5,), opened_by=(3,)),
            Grammar("regex", "a+"),
            Forced((1,)),
        )
    ),
    resume=((4, 5), ()),
    deadline=12.5,
)
OUTPUT = ChoiceOutput(
    request_id="r",
    choice=1,
    token_ids=(9,),
    logprobs=(TokenLogprob(9, -0.5, ((9, -0.5), (3, -1.0))),),
    prompt_logprobs=(None, TokenLogprob(2, -3.0)),
    finish_reason=FinishReason.ERROR,
    error=RequestError("internal", "broken"),
    timings=RequestTimings(1.0, 2.0, 3.0, 4.0, 1),
)
TO_ENGINE = [
    wire.Hello(1, "b", "d", True), wire.Submit(REQUEST), wire.Cancel("r", 1, "stop"),
    wire.StatsRequest(3),
]  # fmt: skip
TO_CLIENT = [
    wire.Refused("no"), wire.Outputs((OUTPUT,), wire.EngineStats(steps=4)),
    wire.Stats(3, wire.EngineStats(queued=1)), wire.Fatal("x"),
]  # fmt: skip


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda m: type(m).__name__)
def test_to_engine_round_trip(message: wire.ToEngine) -> None:
    (body,) = wire.FrameReader().feed(wire.frame(message))
    assert wire.to_engine_decoder.decode(body) == message


@pytest.mark.parametrize("message", TO_CLIENT, ids=lambda m: type(m).__name__)
def test_to_client_round_trip(message: wire.ToClient) -> None:
    (body,) = wire.FrameReader().feed(wire.frame(message))
    assert wire.to_client_decoder.decode(body) == message


@given(st.lists(st.integers(1, 40), max_size=60))
def test_any_fragmentation(cuts: list[int]) -> None:
    stream = b"".join(wire.frame(m) for m in TO_ENGINE)
    reader, bodies, position = wire.FrameReader(), [], 0
    for cut in [*cuts, len(stream)]:
        bodies += reader.feed(stream[position : position + cut])
        position += cut
    assert [wire.to_engine_decoder.decode(b) for b in bodies] == TO_ENGINE


def _logprobs(count: int) -> tuple[TokenLogprob | None, ...]:
    return (None, *(TokenLogprob(i, -1.0 - i, ((7, -0.1),) * 20) for i in range(1, count)))


@pytest.mark.parametrize(
    "outputs",
    [
        (OUTPUT,),
        tuple(ChoiceOutput("r", i, (i,), logprobs=_logprobs(3)[1:]) for i in range(4000)),
        (ChoiceOutput("r", 0, (5,), prompt_logprobs=_logprobs(4000)), OUTPUT),
        (ChoiceOutput("r", 0, (5,), prompt_logprobs=(None,), pooled=bytes(2**19)),),
    ],
    ids=["little", "many choices", "a long prompt", "one that cannot be cut"],
)
def test_what_an_engine_sends_is_cut_into_frames(outputs: tuple[ChoiceOutput, ...]) -> None:
    stats = wire.EngineStats(steps=4)
    whole = wire.frame(wire.Outputs(outputs, stats))
    frames = list(wire.frames(wire.Outputs(outputs, stats)))
    least = max(len(o.pooled) for o in outputs)
    assert all(len(f) <= max(wire.FRAME_BYTES, least + 200) for f in frames)
    assert (len(frames) == 1) == (len(whole) <= wire.FRAME_BYTES or least > 0)
    found: list[ChoiceOutput] = []
    ahead: list[TokenLogprob | None] = []
    for body in wire.FrameReader().feed(b"".join(frames)):
        message = wire.to_client_decoder.decode(body)
        assert isinstance(message, wire.Outputs)
        for output in message.outputs:
            if output.prompt_logprobs and not output.token_ids:
                ahead += output.prompt_logprobs
                continue
            if ahead:
                logprobs = (*ahead, *(output.prompt_logprobs or ()))
                output = msgspec.structs.replace(output, prompt_logprobs=logprobs)
                ahead = []
            found.append(output)
    assert tuple(found) == outputs and message.stats == stats


def test_absurd_length_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        wire.FrameReader().feed(b"\xff\xff\xff\xff")
