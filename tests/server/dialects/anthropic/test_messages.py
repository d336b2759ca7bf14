"""Anthropic's messages over HTTP, streamed and not, with a model that writes what the test says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.anthropic_client import PATH, agree, events, joined, parsed, whole
from helpers.live_server import add_model, fake_context, serving
from helpers.marked_model import PARAMETERS, PARIS, TIME, Model, marked_model
from helpers.scripted_engine import EOS, ScriptedEngine, fake_info

from tidemill.contract.program import Forced, FreeText, Grammar
from tidemill.contract.request import RequestError
from tidemill.generation.choices import ChoiceDelta
from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.security import Security
from tidemill.server.dialects.anthropic.blocks import BlockWriter, Content, as_object
from tidemill.server.dialects.anthropic.signatures import KEY_VARIABLE, Signer
from tidemill.server.host.rollout.traffic import Weights
from tidemill.server.transport import stream
from tidemill.text.answer import AnswerDelta, CallPart
from tidemill.text.template import ChatTemplate

TOOLS = [
    {"name": "get_weather", "description": "Weather", "input_schema": PARAMETERS},
    {"name": "get_time", "input_schema": PARAMETERS},
]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with marked_model() as made:
        yield made


def ask(model: Model, text: str, /, **body: Any) -> dict[str, Any]:
    model.text = text
    return agree(model.http, {"messages": ASK, "max_tokens": 1000, **body})


def refusal(model: Model, **body: Any) -> str:
    answer = model.http.post(PATH, json={"messages": ASK, "max_tokens": 9, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert error["request_id"] == answer.headers["request-id"]
    found: str = error["error"]["message"]
    return found


def sent(model: Model, *messages: dict[str, Any], **body: Any) -> str:
    """The prompt that messages become."""
    model.text = "x"
    whole(model.http, {"messages": list(messages), "max_tokens": 9, **body})
    return model.prompt()


def test_words(model: Model) -> None:
    answer = ask(model, "It rains.", model="tiny", system="Be short.")
    assert answer["content"] == [{"type": "text", "text": "It rains.", "citations": None}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny")
    assert answer["stop_reason"] == "end_turn" and answer["stop_sequence"] is None
    usage = answer["usage"]
    assert usage["output_tokens"] == len("It rains.") + 1
    assert usage["input_tokens"] == len(model.engine.requests[-1].prompt_token_ids)
    assert model.prompt().startswith("<|im_start|>system\nBe short.<|im_end|>\n")
    assert answer["id"].startswith("msg_")


def test_an_empty_answer_and_white_space(model: Model) -> None:
    assert ask(model, "")["content"] == []
    writer = BlockWriter(Signer())
    texts = [AnswerDelta(" "), AnswerDelta("\n")]
    found = [e for t in texts for e in writer.events(ChoiceDelta(0, t.content, ()))]
    found += writer.events(ChoiceDelta(0, "", (), finish="stop"))
    assert [e["delta"]["text"] for e in found if "delta" in e] == [" \n"]


def test_calls_after_words(model: Model) -> None:
    answer = ask(model, f"Let me see.\n{PARIS}\n{TIME}", tools=TOOLS)
    assert answer["stop_reason"] == "tool_use"
    text, first, second = answer["content"]
    assert text["text"].strip() == "Let me see."
    assert (first["name"], first["input"]) == ("get_weather", {"city": "Paris"})
    assert (second["name"], second["input"]) == ("get_time", {"city": "Zürich"})
    assert first["id"].startswith("toolu_") and first["id"] != second["id"]
    assert '"name": "get_weather", "description": "Weather"' in model.prompt()


def test_words_after_a_call_are_a_block_of_their_own(model: Model) -> None:
    answer = ask(model, f"{PARIS}\nSo it is.", tools=TOOLS)
    assert [b["type"] for b in answer["content"]] == ["tool_use", "text"]
    assert answer["content"][1]["text"].strip() == "So it is."


def test_blocks_do_not_depend_on_how_tokens_come_together() -> None:
    call = (CallPart(0, "f", ""), CallPart(0, None, '{"a":'), CallPart(0, None, "1}"))
    singles = [
        AnswerDelta(reasoning="hm"),
        AnswerDelta("one"),
        *(AnswerDelta(calls=(part,)) for part in call),
        AnswerDelta("\n"),
        AnswerDelta("two"),
    ]
    documents = []
    for size in (1, 2, 3, 7):
        writer, content = BlockWriter(Signer(b"k")), Content()
        groups = [singles[i : i + size] for i in range(0, len(singles), size)]
        for group in groups:
            total = group[0]
            for part in group[1:]:
                total += part
            delta = ChoiceDelta(
                0,
                total.content,
                (),
                total.reasoning,
                total.calls,
                parts=total.parts,
                finish="stop" if group is groups[-1] else None,
            )
            for event in writer.events(delta):
                content.apply(event)
        documents.append([{**b, "id": ""} for b in content.document()])
    assert all(found == documents[0] for found in documents[1:])
    assert [b["type"] for b in documents[0]] == ["thinking", "text", "tool_use", "text"]


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ('{"a": 1.50}', b'{"a": 1.50}'),
        ('{"a": [1, {"b": "x', b'{"a": [1, {}]}'),
        ('{"a": "x\\"", "b', b'{"a": "x\\""}'),
        ('{"a": {"b": 2}', b'{"a": {"b": 2}}'),
        ("{", b"{}"),
        ("", {}),
        ("nope", {}),
    ],
)
def test_arguments_that_are_cut(text: str, closed: bytes | dict[str, Any]) -> None:
    found = as_object(text)
    assert (found if isinstance(found, dict) else bytes(found)) == closed


@pytest.mark.parametrize(
    ("choice", "enforced", "names"),
    [
        ({"type": "auto"}, False, 2),
        ({"type": "any"}, True, 2),
        ({"type": "tool", "name": "get_time"}, True, 1),
        ({"type": "auto", "disable_parallel_tool_use": True}, True, 2),
    ],
)
def test_tool_choice(model: Model, choice: dict[str, Any], enforced: bool, names: int) -> None:
    ask(model, PARIS, tools=TOOLS, tool_choice=choice)
    phases = model.engine.requests[-1].program.phases
    grammars = [phase for phase in phases if isinstance(phase, Grammar)]
    assert bool(grammars) is enforced
    if grammars:
        assert ("get_weather" in grammars[0].source) is (names == 2)


def test_tool_choice_none_hides_the_tools(model: Model) -> None:
    ask(model, "No.", tools=TOOLS, tool_choice={"type": "none"})
    assert "get_weather" not in model.prompt()


def test_stop_sequences(model: Model) -> None:
    answer = ask(model, "one two three", stop_sequences=["two", "four"])
    assert answer["content"] == [{"type": "text", "text": "one ", "citations": None}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "two")


def test_max_tokens_and_the_context(model: Model) -> None:
    assert ask(model, "one two three", max_tokens=5)["stop_reason"] == "max_tokens"
    answer = ask(model, "x" * 9000, max_tokens=64000)  # as Claude Code sends it
    assert answer["stop_reason"] == "model_context_window_exceeded"
    used = answer["usage"]
    assert used["input_tokens"] + used["output_tokens"] == 8192


def test_max_tokens_of_zero_computes_the_prompt_alone(model: Model) -> None:
    answer = whole(model.http, {"messages": ASK, "max_tokens": 0})
    assert answer["content"] == [] and answer["usage"]["output_tokens"] == 0
    assert answer["stop_reason"] == "max_tokens"


def test_an_earlier_conversation(model: Model) -> None:
    prompt = sent(
        model,
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "P"}},
                {"type": "tool_use", "id": "t2", "name": "get_time", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t2", "content": "noon"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no such city"}],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "system", "content": "Be quick."},
        {"role": "user", "content": "Please."},
        {"role": "user", "content": "Now."},
        tools=TOOLS,
    )
    _, _, talk = prompt.partition("<|im_start|>user\n")
    assert talk == (
        "Weather?<|im_end|>\n<|im_start|>assistant\nI look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "P"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nError: no such city\n</tool_response>\n"
        "<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>system\nBe quick.<|im_end|>\n"
        "<|im_start|>user\nPlease.\nNow.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_documents_of_text(model: Model) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Rain is wet."}
    found = {"type": "text", "text": "Snow is cold."}
    prompt = sent(
        model,
        {
            "role": "user",
            "content": [
                {"type": "document", "source": source, "title": "Rain"},
                {"type": "search_result", "source": "a.example", "title": "S", "content": [found]},
                {"type": "text", "text": "So?"},
            ],
        },
    )
    assert "<document>\nRain\nRain is wet.\n</document>\n<search_result>\nS\na.example\n" in prompt


def test_a_prefill_is_continued(model: Model) -> None:
    prompt = sent(model, *ASK, {"role": "assistant", "content": "It is ("})
    assert prompt.endswith("<|im_start|>assistant\nIt is (")


def test_the_billing_line_of_claude_code_stays_out_of_the_prompt(model: Model) -> None:
    def prompt(version: str) -> str:
        line = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli;"
        blocks = [{"type": "text", "text": text} for text in (line, "You help.")]
        assert "billing" not in sent(model, *ASK, system=f"{line}\nYou help.")
        return sent(model, *ASK, system=blocks)

    assert prompt("2.1.197.1c0") == prompt("2.1.198.ff1")
    assert prompt("1").startswith("<|im_start|>system\nYou help.<|im_end|>")


def test_fields_that_cannot_change_an_answer(model: Model) -> None:
    ask(
        model,
        "x",
        metadata={"user_id": "a"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        mcp_servers=[],
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        tools=[{**TOOLS[0], "type": "custom", "eager_input_streaming": True}],
    )
    answer = model.http.post(
        f"{PATH}?beta=true",
        json={"messages": ASK, "max_tokens": 9},
        headers={"anthropic-beta": "a-2025-01-01,b", "anthropic-version": "2023-06-01"},
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 99}, "stop_sequences"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management"),
        ({"speed": "fast"}, "speed"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"nonsense": 1}, "nonsense"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOLS[0], "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"output_config": {"task_budget": {"total": 1}}}, "output_config.task_budget"),
    ],
)
def test_what_is_refused_is_named(model: Model, body: dict[str, Any], named: str) -> None:
    assert named in refusal(model, **body)


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"type": "image", "source": {"type": "base64"}}, "content[0].type: "),
        ({"type": "redacted_thinking", "data": "x"}, "content[0].type"),
        ({"type": "server_tool_use", "id": "a", "name": "b", "input": {}}, "content[0].type"),
        ({"type": "tool_use", "id": "a", "name": "b", "input": {}}, "content[0].type"),
        ({"type": "text"}, "content[0].text"),
        ({"type": "text", "text": "a", "thinking": "b"}, "content[0].thinking"),
        ({"type": "text", "text": "a", "citations": [{"type": "x"}]}, "content[0].citations"),
        ({"type": "tool_result", "tool_use_id": "a"}, "messages[0].content[0].tool_use_id"),
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}},
            "content[0].source.type",
        ),
        (
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]},
            "content[0].content[0].type",
        ),
    ],
)
def test_blocks_that_are_refused(model: Model, block: dict[str, Any], named: str) -> None:
    assert named in refusal(model, messages=[{"role": "user", "content": [block]}])


def test_a_format_is_enforced(model: Model) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "schema": schema}
    for body in ({"output_config": {"format": form}}, {"output_format": form}):
        ask(model, '{"a": 1}', **body)
        (phase,) = model.engine.requests[-1].program.phases
        assert isinstance(phase, Grammar) and '"integer"' in phase.source


def test_thinking_comes_with_a_signature_that_is_asked_for(model: Model) -> None:
    thinks = {"type": "enabled", "budget_tokens": 100}
    text = "<think>\nI need it.\n</think>\n\n" + PARIS
    answer = ask(model, text, thinking=thinks, tools=TOOLS, tool_choice={"type": "any"})
    phases = model.engine.requests[-1].program.phases
    assert [type(phase) for phase in phases] == [Forced, FreeText, Forced, Grammar]
    thought, call = answer["content"]
    assert thought["thinking"].strip() == "I need it." and call["type"] == "tool_use"
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] > 10
    turns = [
        *ASK,
        {"role": "assistant", "content": answer["content"]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "17"}],
        },
    ]
    assert "<think>\nI need it.\n</think>" in sent(model, *turns, tools=TOOLS)
    for change in ({"thinking": "I do not."}, {"signature": "AAAA"}, {"signature": "é"}):
        wrong = [{**thought, **change}, call]
        turns[1] = {"role": "assistant", "content": wrong}
        message = refusal(model, messages=turns, tools=TOOLS)
        assert "messages[1].content[0].signature" in message


def test_thinking_that_is_omitted_is_in_its_signature(model: Model) -> None:
    thinks = {"type": "adaptive", "display": "omitted"}
    answer = ask(model, f"<think>\nAha.\n</think>\n\n{PARIS}", thinking=thinks, tools=TOOLS)
    thought, call = answer["content"]
    assert thought["thinking"] == "" and "Aha" not in thought["signature"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "17"}
    turns = [
        *ASK,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]
    assert "<think>\nAha.\n</think>" in sent(model, *turns, tools=TOOLS)


def test_without_a_word_of_thinking_there_is_none(model: Model) -> None:
    ask(model, "x")
    assert model.prompt().endswith("<think>\n\n</think>\n\n")
    assert "thinking.type" in refusal(
        model,
        messages=[*ASK, {"role": "assistant", "content": "So"}],
        thinking={"type": "enabled", "budget_tokens": 2},
    )


def test_tokens_are_counted_as_a_message_uses_them(model: Model) -> None:
    body = {"messages": ASK, "tools": TOOLS, "system": "s"}
    used = ask(model, "x", **body)["usage"]["input_tokens"]
    counted = model.http.post(f"{PATH}/count_tokens", json=body)
    assert counted.json() == {"input_tokens": used}
    wrong = model.http.post(f"{PATH}/count_tokens", json={"messages": []})
    assert wrong.status_code == 400 and wrong.json()["type"] == "error"


def test_cached_tokens() -> None:
    engine = ScriptedEngine(lambda request, choice: [*b"ok", EOS], cached_tokens=32)
    context = fake_context(engine)
    with serving(context) as url, httpx.Client(base_url=url) as http:
        text = "word " * 20
        usage = agree(http, {"messages": [{"role": "user", "content": text}], "max_tokens": 9})
        prompt = len(engine.requests[-1].prompt_token_ids)
        assert usage["usage"]["cache_read_input_tokens"] == 32
        assert usage["usage"]["input_tokens"] == prompt - 32
        marked = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        body = {"messages": [{"role": "user", "content": [marked]}], "max_tokens": 9}
        usage = agree(http, body)
        created = usage["usage"]["cache_creation_input_tokens"]
        assert created == prompt // 32 * 32 - 32 > 0
        assert usage["usage"]["input_tokens"] == prompt - 32 - created
        start = events(http, body)[0]["message"]["usage"]
        assert {**start, "output_tokens": 0} == start
        assert all(usage["usage"][k] == v for k, v in start.items() if "input" in k)


def test_errors_in_its_shape() -> None:
    engine = ScriptedEngine(lambda request, choice: [*b"polly"])
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url) as http:
        body = {"messages": ASK, "max_tokens": 9}
        for path, method, status, kind in (
            (PATH, "GET", 405, "invalid_request_error"),
            (f"{PATH}/nothing", "POST", 404, "not_found_error"),
        ):
            answer = http.request(method, path, json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        unknown = http.post(PATH, json={**body, "model": "gpt"}).json()
        assert (
            unknown["error"]["type"] == "not_found_error" and "'gpt'" in unknown["error"]["message"]
        )
        broken = http.post(PATH, content=b"{", headers={"content-type": "application/json"})
        assert broken.json()["error"]["type"] == "invalid_request_error"
        version = http.post(PATH, json=body, headers={"anthropic-version": "new"})
        assert "anthropic-version" in version.json()["error"]["message"]
        # The header of its clients decides where no other dialect has the path.
        elsewhere = http.get("/v1/nothing", headers={"anthropic-version": "2023-06-01"})
        assert elsewhere.json()["type"] == "error"
        assert "param" in http.get("/v1/nothing").json()["error"]
        engine.fail_after = 2
        failing = http.post(PATH, json={**body, "stream": True})
        last = parsed(failing.text)[-1]
        assert last["type"] == "error" and last["error"]["type"] == "api_error"
        assert last["request_id"] == failing.headers["request-id"]
        engine.fail_after, engine.error = 0, RequestError("overloaded", "too much")
        busy = http.post(PATH, json=body)
        assert busy.status_code == 429 and busy.json()["error"]["type"] == "rate_limit_error"
        assert int(busy.headers["retry-after"]) >= 1


def test_models_for_its_clients(model: Model) -> None:
    theirs = {"anthropic-version": "2023-06-01"}
    page = model.http.get("/v1/models", headers=theirs).json()
    (card,) = page["data"]
    assert card["type"] == "model" and card["id"] == "tiny" and not page["has_more"]
    one = model.http.get("/v1/models/tiny", headers=theirs).json()
    assert one == card and page["first_id"] == page["last_id"] == "tiny"
    missing = model.http.get("/v1/models/none", headers=theirs)
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"
    assert model.http.get("/v1/models").json()["object"] == "list"
    for query in ("limit=0", "limit=x", "after_id=none"):
        wrong = model.http.get(f"/v1/models?{query}", headers=theirs)
        assert wrong.status_code == 400 and wrong.json()["type"] == "error"


def test_the_openapi_document_has_the_shape_of_its_errors(model: Model) -> None:
    document = model.http.get("/openapi.json").json()
    operation = document["paths"]["/v1/messages"]["post"]["responses"]["400"]
    name = operation["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    shape = document["components"]["schemas"][name]
    error = model.http.post(PATH, json={}).json()
    assert set(shape["required"]) == set(error)
    kinds = shape["properties"]["error"]["properties"]["type"]["enum"]
    assert error["error"]["type"] in kinds
    models = document["paths"]["/v1/models"]["get"]["responses"]["500"]["content"]
    assert models["application/json"]["schema"]["$ref"].endswith("/Error")


def test_silence_is_filled_with_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 0.05)
    engine = ScriptedEngine(lambda request, choice: [*b"ok", EOS], step_seconds=0.4)
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url, timeout=30) as http:
        found = events(http, {"messages": ASK, "max_tokens": 9})
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["message_start", "ping"], "the prompt is known while it is computed"
    assert joined(found)["content"][0]["text"] == "ok"
    assert {"type": "ping"} in found


def test_signatures_outlive_the_server_where_the_secret_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signature = Signer().sign("hm")
    assert Signer().verified("hm", signature) is None
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    signature = Signer.from_environment().sign("hm")
    assert Signer.from_environment().verified("hm", signature) == "hm"
    omitted = Signer.from_environment().sign("hm", shown=False)
    assert Signer.from_environment().verified("", omitted) == "hm"
    assert Signer.from_environment().verified("hm", omitted) is None
    monkeypatch.setenv(KEY_VARIABLE, "another")
    assert Signer.from_environment().verified("", omitted) is None


def test_a_user_of_the_metadata_keeps_its_version() -> None:
    context = fake_context(ScriptedEngine(info=fake_info(model="chat@1")))
    add_model(context, ScriptedEngine(info=fake_info(model="chat@2")))
    rule = Weights(weights={"1": 1.0, "2": 1.0}, sticky="user")
    keys = Security(keys=StaticKeys(("a-key-that-is-long-enough",)))
    context.versions().declare("chat", ("1", "2"), rule=rule)
    found: dict[str, set[str]] = {}
    with serving(context, keys) as url:
        headers = {"x-api-key": "a-key-that-is-long-enough"}
        for turn in range(2):
            for user in map(str, range(8)):
                body = {"model": "chat", "messages": ASK, "max_tokens": 2}
                body["metadata"] = {"user_id": user, "turn": turn}
                answer = httpx.post(url + PATH, json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                found.setdefault(user, set()).add(answer.headers["x-tidemill-model"])
        body["metadata"] = {"user_id": 3}
        refused = httpx.post(url + PATH, json=body, headers=headers)
        assert refused.status_code == 400 and "user_id" in refused.text
    assert all(len(versions) == 1 for versions in found.values())
    assert set().union(*found.values()) == {"chat@1", "chat@2"}


def test_an_order_of_roles_that_the_template_rejects_is_adapted() -> None:
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('the system message must be first') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    with marked_model(template=ChatTemplate(strict)) as model:
        model.text = "so"
        messages = [
            *ASK,
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "B"},
        ]
        body = {"messages": messages, "max_tokens": 5, "model": "tiny"}
        answer = model.http.post(PATH, json=body)
        assert answer.status_code == 200, answer.text
        assert "Be brief." in model.prompt() and "[system]" not in model.prompt()
