"""The official openai client, unmodified, against the server over a fake engine."""

from __future__ import annotations

import openai
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine, fake_info, hashed_letters
from openai.types.chat import ChatCompletion

from tidemill.contract.request import EngineRequest
from tidemill.server.context import ServerContext

HELLO = [{"role": "user", "content": "hello"}]


def _expected(engine: ScriptedEngine, choice: int = 0) -> str:
    tokens = hashed_letters(engine.requests[-1], choice)
    return bytes(t for t in tokens if t < 256).decode()


def test_chat(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, seed=7)
    choice = answer.choices[0]
    assert choice.message.content == _expected(engine)
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    request = engine.requests[-1]
    prompt = len(request.prompt_token_ids)
    assert answer.usage.prompt_tokens == prompt
    # The end token counts, though it has no text.
    assert answer.usage.completion_tokens == len(hashed_letters(request, 0))
    assert answer.usage.total_tokens == prompt + answer.usage.completion_tokens
    assert answer.system_fingerprint.startswith("fp_")
    assert request.sampling.seed == 7
    assert request.sampling.max_tokens == 256 - prompt


def test_chat_prompt_is_the_template(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None},
            {"role": "user", "content": "c"},
        ],
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    marks = dict(enumerate(["bos", "end", "system", "user", "assistant", "tool"], start=256))
    prompt = "".join(
        chr(t) if t < 256 else f"[{marks[t]}]" for t in engine.requests[-1].prompt_token_ids
    )
    assert prompt == (
        "[system]be brief[end][user]a[end][assistant]b[end][user]c[end][assistant](quick)"
    )


def test_streams_equal_whole_answers(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "messages": HELLO, "seed": 3, "n": 3, "logprobs": True}
    whole = client.chat.completions.create(**asked, top_logprobs=2, stop=["q", "a b"])
    texts, reasons, logprobs = [""] * 3, [None] * 3, [[], [], []]
    usage = None
    stream = client.chat.completions.create(
        **asked,
        top_logprobs=2,
        stop=["q", "a b"],
        stream=True,
        stream_options={"include_usage": True},
    )
    first_roles = []
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.role:
                first_roles.append(choice.index)
            assert reasons[choice.index] is None, "a chunk after the finish chunk"
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
            if choice.logprobs:
                logprobs[choice.index] += choice.logprobs.content
    assert first_roles == [0, 1, 2]
    assert texts == [c.message.content for c in whole.choices]
    assert len(set(texts)) > 1
    assert reasons == [c.finish_reason for c in whole.choices]
    assert logprobs == [c.logprobs.content for c in whole.choices]
    assert usage == whole.usage


def test_completion_streams_equal_whole_answers(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "prompt": ["one", "two"], "n": 2, "seed": 1}
    asked |= {"echo": True, "logprobs": 3, "max_tokens": 5}
    whole = client.completions.create(**asked)
    assert [c.index for c in whole.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    lists = [{"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}] * 4
    lists = [{k: [] for k in part} for part in lists]
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            for name, values in lists[choice.index].items():
                values += getattr(choice.logprobs, name) if choice.logprobs else []
    assert texts == [c.text for c in whole.choices]
    for choice, parts in zip(whole.choices, lists, strict=True):
        assert parts == {name: getattr(choice.logprobs, name) for name in parts}
    assert whole.usage.prompt_tokens == 8, "start token and three bytes, twice"
    assert whole.usage.completion_tokens == 20


def test_echo_and_completion_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="hé", echo=True, logprobs=1, max_tokens=1
    )
    choice = answer.choices[0]
    assert choice.text.startswith("hé") and len(choice.text) == 3
    logprobs = choice.logprobs
    assert logprobs.tokens[:4] == ["<|bos|>", "h", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs.text_offset == [0, 0, 1, 1, 2]
    assert logprobs.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5]
    assert logprobs.top_logprobs[0] is None and logprobs.top_logprobs[1] == {"h": -0.5}


def test_chat_logprobs_have_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    entries = choice.logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert entries[-1].token == "<|end|>", "the end token has an entry and no text"
    shown = b"".join(bytes(e.bytes) for e in entries[:-1])
    assert shown.decode() == choice.message.content
    assert [t.token for t in entries[0].top_logprobs] == [entries[0].token, "@"]


def _said(text: str):
    return lambda request, choice: [*text.encode(), 257]


def _ask(text: str, **fields: object) -> tuple[ChatCompletion, str, ScriptedEngine]:
    """An answer to a scripted text, whole, and its streamed text."""
    engine = ScriptedEngine(_said(text))
    with serving(fake_context(engine)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        ask = client.chat.completions.create
        whole = ask(model="tiny", messages=HELLO, **fields)
        stream = ask(model="tiny", messages=HELLO, stream=True, **fields)
        streamed = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
        return whole, streamed, engine


def test_stop_strings_end_without_leaking_and_without_surplus() -> None:
    whole, streamed, engine = _ask("one STOP two", stop="STOP")
    assert whole.choices[0].message.content == streamed == "one "
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == len("one STOP")
    assert [c[1:] for c in engine.cancelled] == [(0, "stop")] * 2


def test_broken_characters_are_never_sent() -> None:
    whole, streamed, _ = _ask("tide 🌊 mill é")
    assert whole.choices[0].message.content == streamed == "tide 🌊 mill é"


def test_finish_length_and_stop_token_ids() -> None:
    whole, _, _ = _ask("abcdef", max_tokens=3)
    assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("length", "abc")
    whole, streamed, _ = _ask("abcdef", extra_body={"stop_token_ids": [ord("d")]})
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].message.content == streamed == "abc"
    assert whole.usage.completion_tokens == 4


def test_cached_tokens_are_reported() -> None:
    engine = ScriptedEngine(cached_tokens=5)
    with serving(fake_context(engine)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        answer = client.chat.completions.create(model="tiny", messages=HELLO, n=2)
        assert answer.usage.prompt_tokens_details.cached_tokens == 5


def test_model_defaults_and_effective(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    context = fake_context(ScriptedEngine(), defaults={"temperature": 0.6, "top_k": 20})
    with serving(context) as url:
        other = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        answer = other.chat.completions.create(
            model="tiny", messages=HELLO, top_p=0.9, extra_body={"include_effective": True}
        )
        applied = answer.model_extra["tidemill"]
        assert applied["sampling"]["temperature"] == 0.6
        assert applied["sampling"]["top_k"] == 20
        assert applied["sampling"]["top_p"] == 0.9
        assert applied["from_model_defaults"] == ["temperature", "top_k"]
        assert applied["context_length"] == 256
        seed = applied["sampling"]["seed"]
        again = other.chat.completions.create(
            model="tiny", messages=HELLO, top_p=0.9, seed=seed, temperature=0.6
        )
        assert again.choices[0].message.content == answer.choices[0].message.content
        last = list(
            other.chat.completions.create(
                model="tiny",
                messages=HELLO,
                stream=True,
                extra_body={"include_effective": True},
            )
        )[-1]
        assert last.choices == [] and "sampling" in last.model_extra["tidemill"]
    plain = client.chat.completions.create(model="tiny", messages=HELLO)
    assert "tidemill" not in plain.model_extra


def test_drawn_seeds_differ_between_prompts(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.completions.create(model="tiny", prompt=["x", "x"])
    first, second = engine.requests[-2:]
    assert first.sampling.seed != second.sampling.seed
    client.completions.create(model="tiny", prompt=["x", "x"], seed=9)
    assert [r.sampling.seed for r in engine.requests[-2:]] == [9, 9]


def test_continue_final_message(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(
        model="tiny",
        messages=[*HELLO, {"role": "assistant", "content": "The tide"}],
        extra_body={"continue_final_message": True},
    )
    assert bytes(engine.requests[-1].prompt_token_ids[-8:]) == b"The tide"


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "tidemill"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("absent/model")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("kind", "status", "raised"),
    [
        ("overloaded", 429, openai.RateLimitError),
        ("resource", 503, openai.InternalServerError),
        ("unsupported", 400, openai.BadRequestError),
        ("internal", 500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_engine_errors_before_the_first_token(
    kind: str, status: int, raised: type[openai.APIStatusError], stream: bool
) -> None:
    from tidemill.contract.request import RequestError

    error = RequestError(kind, "the engine says no", "top_k")
    engine = ScriptedEngine(fail_after=0, error=error)
    with serving(fake_context(engine)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with pytest.raises(raised) as caught:
            client.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
    assert caught.value.status_code == status
    if kind == "internal":
        assert "the engine says no" not in caught.value.message, "defects stay in the log"
    else:
        assert "the engine says no" in caught.value.message
        assert caught.value.param == "top_k"


def test_an_error_after_the_stream_began_is_an_event() -> None:
    engine = ScriptedEngine(fail_after=3)
    with serving(fake_context(engine)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        text = ""
        with pytest.raises(openai.APIError):
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        assert len(text) == 3


def test_one_failing_prompt_cancels_the_others() -> None:
    def script(request: EngineRequest, choice: int) -> list[int]:
        return [ord("a")] * 200

    engine = ScriptedEngine(script, fail_after=2)
    context = fake_context(engine)
    with serving(context) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model="tiny", prompt=["a", "b"])
        assert context.host.models[0].admission.active == 0


def test_too_many_choices() -> None:
    from tidemill.contract.sampling import SamplingParams
    from tidemill.generation.caller import ANONYMOUS
    from tidemill.server.access.limits import Limits

    context: ServerContext = fake_context(ScriptedEngine(), limits=Limits(max_active_choices=2))
    with serving(context) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        one = SamplingParams(max_tokens=1)
        ticket = context.host.models[0].admission.admit(ANONYMOUS, [(1,)], [one])
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="tiny", prompt="a", n=2)
        assert 1 <= int(caught.value.response.headers["retry-after"]) < 60
        ticket.close()
        assert client.completions.create(model="tiny", prompt="a", n=2).choices
        with pytest.raises(openai.BadRequestError) as never:
            client.completions.create(model="tiny", prompt="a", n=3)
        assert never.value.param == "n"


def test_context_length(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="x" * 300)
    assert caught.value.code == "context_length_exceeded"
    assert "301 tokens" in caught.value.message and "256" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="x" * 99, max_tokens=157)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "max_tokens"
    for number in ("100", "157", "257", "256", "156"):
        assert number in caught.value.message
    answer = client.completions.create(
        model="tiny", prompt="x" * 99, max_tokens=156, extra_body={"ignore_eos": True}
    )
    assert answer.usage.total_tokens == 256


def test_bigger_output_layer_than_vocabulary(engine: ScriptedEngine) -> None:
    assert fake_info().vocab_size == 320
    padded = ScriptedEngine(lambda request, choice: [300, 97, 257])
    with serving(fake_context(padded)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        answer = client.chat.completions.create(model="tiny", messages=HELLO)
        assert answer.choices[0].message.content == "a"
