"""The table of known fields: every field with every value, as tests and as documents say it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from helpers import field_tables
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.dialects.fields import ANY, Alias, Group, Neutral
from tidemill.server.dialects.members import Body, InvalidField, fill
from tidemill.server.dialects.openai import schema
from tidemill.text.template import ChatTemplate

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TEXT: dict[str, Any] = {"prompt": "hello"}
MODELS: dict[type[Body], dict[str, Any]] = {
    schema.ChatRequest: CHAT,
    schema.CompletionRequest: TEXT,
    schema.TokenizeRequest: {},
    schema.StreamOptions: {},
    schema.Message: {"role": "user", "content": "hello"},
    schema.ReturnedFields: {},
    schema.EmbeddingRequest: {"input": "x"},
    schema.RerankRequest: {"query": "x", "documents": ["y"]},
    schema.ScoreRequest: {"text_1": "x", "text_2": "y"},
}
# Values of every kind; what a field does not take of them must be refused.
VALUES: list[Any] = [
    *(True, False, 0, 1, -1, -2, 3, 1.0, 0.0, 0.5, 2.5, "", "x", "none", "auto"),
    *([], [""], ["x"], ["text"], {}, {"x": 1}, ["temperature", "penalties"]),
]
KINDS: dict[type, list[Any]] = {
    bool: [True, False], float: [0, 1.5], int: [7], str: ["", "abc"], list: [[], ["a"]],
    dict: [{}, {"a": 1}], ANY: [1, "a", [], {}],
}  # fmt: skip
ORDERS = [
    ["penalties", "temperature", "top_k", "top_p", "min_p"],
    ["penalties", "dry", "temperature", "min_p", "top_p", "top_n_sigma", "top_k", "typ_p", "xtc"],
]


def declared(model: type[Body]) -> set[str]:
    return set(model.__struct_fields__)


def harmless(known: Neutral) -> list[Any]:
    """Values that a field takes."""
    listed = [*known.values, *(float(v) for v in known.values if type(v) is int)]
    kinds = [value for kind in known.kinds for value in KINDS[kind]]
    return [*listed, *kinds, *(ORDERS if known.test else [])]


def same(one: Any, other: Any) -> bool:
    """The same JSON; numbers by their value, and no boolean is a number."""
    if {type(one), type(other)} <= {int, float}:
        return bool(one == other)
    return json.dumps(one) == json.dumps(other)


def of_a_kind(value: Any, known: Neutral) -> bool:
    kinds = {*known.kinds, *((int,) if float in known.kinds else ())}
    return ANY in kinds or type(value) in kinds


NEUTRALS = [
    pytest.param(model, name, known, id=f"{model.__name__}-{name}")
    for model in MODELS
    for name, known in model.known.items()
    if isinstance(known, Neutral)
]


def fresh(value: Any) -> Any:
    """`fill` changes what it is given."""
    if isinstance(value, dict):
        return {k: fresh(v) for k, v in value.items()}
    return [fresh(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("model", "name", "known"), NEUTRALS)
def test_neutral_values_change_nothing_and_others_are_refused_by_name(
    model: type[Body], name: str, known: Neutral
) -> None:
    base = MODELS[model]
    plain = fill(model, fresh(base))
    for value in [None, *harmless(known)]:
        names: dict[str, str] = {}
        assert fill(model, {**fresh(base), name: fresh(value)}, names) == plain, value
        assert not names
    if name in declared(model):
        return
    for value in VALUES:
        if any(same(value, other) for other in known.values) or of_a_kind(value, known):
            continue
        with pytest.raises(InvalidField) as caught:
            fill(model, {**fresh(base), name: fresh(value)})
        assert (caught.value.code, caught.value.path) == ("unsupported", name)
        assert known.described() in caught.value.reason and known.feature


def aliases(model: type[Body]) -> list[tuple[str, str | None, Alias]]:
    found: list[tuple[str, str | None, Alias]] = []
    for name, known in model.known.items():
        if isinstance(known, Group):
            found += [(name, k, v) for k, v in known.members.items() if isinstance(v, Alias)]
        elif isinstance(known, Alias):
            found.append((name, None, known))
    return found


ALIASES = [
    pytest.param(model, name, inner, alias, id=f"{model.__name__}-{name}-{inner}")
    for model in MODELS
    for name, inner, alias in aliases(model)
]
# Two values of each declared field that has other names.
SAMPLES: dict[str, list[Any]] = {
    "repetition_penalty": [1.5, 1.25],
    "max_tokens": [5, 6],
    "top_n": [1, 2],
    "keep_alive": [60, "5m"],
    "seed": [7, -8],
    "stop": ["a", ["b", "c"]],
    "guided_regex": ["a+", "b"],
    "grammar": ["root ::= [a-z]", "root ::= [0-9]"],
    "custom_token_bans": [[1, 2], "3, 4"],
    "num_ctx": [100, 200],
    "guided_grammar": ["root ::= [a-z]", "root ::= [0-9]"],
    "reasoning_effort": ["low", "high"],
    "thinking_token_budget": [100, 200],
    "enable_thinking": [True, False],
    "include_reasoning": [False, True],
    "reasoning_content": ["so", "thus"],
    "prompt": ["a", "b"],
    "truncation_side": ["left", "right"],
    "temperature": [0, 0.5],
    "beam_width": [2, 3],
    "n": [2, 3],
    "logprobs": [1, 2],
    "typical_p": [0.5, 1],
    "top_n_sigma": [1, 2.5],
    "repeat_last_n": [64, -1],
}
SWITCH = [True, False]


@pytest.mark.parametrize(("model", "name", "inner", "alias"), ALIASES)
def test_other_names_mean_the_same(
    model: type[Body], name: str, inner: str | None, alias: Alias
) -> None:
    base = MODELS[model]
    at = name if inner is None else f"{name}.{inner}"
    spelled = [(word, value) for word, value in alias.values.items() if value is not None]
    for target in alias.targets():
        pairs = spelled if alias.strict else [(v, v) for v in SAMPLES.get(target, SWITCH)]
        for sent, meant in pairs:
            value = sent if inner is None else {inner: sent}
            names: dict[str, str] = {}
            body = fill(model, {**fresh(base), name: value}, names)
            assert body == fill(model, {**fresh(base), target: meant})
            assert names == {target: at}
            assert fill(model, {**fresh(base), target: meant, name: fresh(value)}) == body
            other = next(v for v in SAMPLES.get(target, SWITCH) if v != meant)
            with pytest.raises(InvalidField) as caught:
                fill(model, {**fresh(base), target: other, name: fresh(value)})
            assert caught.value.path == at
            assert at in caught.value.reason and target in caught.value.reason
    with pytest.raises(InvalidField) as caught:
        fill(model, {**fresh(base), name: [{}] if inner is None else {inner: [{}]}})
    assert caught.value.path == at


def test_words_that_leave_the_model_its_way() -> None:
    for thinking in ({"type": "adaptive"}, {}, {"type": None}):
        assert fill(schema.ChatRequest, {**CHAT, "thinking": thinking}) == fill(
            schema.ChatRequest, dict(CHAT)
        )
    with pytest.raises(InvalidField) as caught:
        fill(schema.ChatRequest, {**CHAT, "thinking": {"type": "enabled", "budget": 5}})
    assert caught.value.path == "thinking.budget" and "budget_tokens" in caught.value.reason


def test_whole_numbers_may_be_written_with_a_point() -> None:
    body = fill(
        schema.CompletionRequest,
        {"prompt": "x", "n": 2.0, "max_tokens": 4.0, "stop_token_ids": [1.0, 2]},
    )
    assert (body.n, body.max_tokens, body.stop_token_ids) == (2, 4, [1, 2])
    assert type(body.n) is int
    for name, value in (("n", 2.5), ("max_tokens", 1e300), ("stop_token_ids", [1.5])):
        with pytest.raises(InvalidField):
            fill(schema.CompletionRequest, {"prompt": "x", name: value})


@pytest.fixture(scope="module")
def http(base_url: str) -> httpx.Client:
    return httpx.Client(base_url=base_url, timeout=10)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/chat/completions", schema.ChatRequest),
        ("/v1/completions", schema.CompletionRequest),
    ],
)
def test_a_whole_form_of_neutral_values(http: httpx.Client, path: str, model: type[Body]) -> None:
    form = {
        name: values[0]
        for name, known in model.known.items()
        if isinstance(known, Neutral) and (values := harmless(known))
    }
    assert len(form) > 80
    asked = {**MODELS[model], "seed": 5}
    answers = [http.post(path, json=body) for body in (asked, {**form, **asked})]
    assert [a.status_code for a in answers] == [200, 200], answers[1].text
    first, second = (a.json()["choices"] for a in answers)
    assert first == second


def test_errors_name_the_field_that_was_sent(http: httpx.Client) -> None:
    for sent, param, meant in (
        ({"repeat_penalty": 200}, "repeat_penalty", "repetition_penalty"),
        ({"n_predict": 100_000}, "n_predict", "max_tokens"),
        ({"max_new_tokens": "x"}, "max_new_tokens", ""),
        ({"reasoning": {"effort": "most"}}, "reasoning.effort", "reasoning_effort"),
        ({"thinking": {"budget_tokens": 0}}, "thinking.budget_tokens", "thinking_token_budget"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"maxTokens": 1}, "maxTokens", "did you mean max_tokens?"),
        ({"prompt": "x"}, "prompt", "/v1/completions"),
        ({"options": {"num_ctx": 1}}, "options", "into the body itself"),
        ({"tfs_z": 0.5}, "tfs_z", "1 is accepted"),
        ({"verbosity": "low"}, "verbosity", "template"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "expected one of 'function'"),
        ({"messages": [{"role": "me"}]}, "messages[0].role", "'system', 'developer', 'user'"),
        ({"verbosity": "loud"}, "verbosity", "'low', 'medium', 'high'"),
    ):
        answer = http.post("/v1/chat/completions", json={**CHAT, **sent})
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == param, error
        assert param in error["message"] and meant in error["message"], error


def test_verbosity_reaches_templates_that_use_it() -> None:
    source = "{{ verbosity }}:{% for m in messages %}{{ m.content }}{% endfor %}"
    engine = ScriptedEngine()
    with serving(fake_context(engine, template=ChatTemplate(source))) as url:
        for verbosity in ("low", "high"):
            body = {**CHAT, "verbosity": verbosity}
            assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200
            assert bytes(engine.requests[-1].prompt_token_ids) == f"{verbosity}:hello".encode()


def test_a_switch_that_turns_off_what_there_is_not_is_neutral(http: httpx.Client) -> None:
    for name in ("enable_thinking", "thinking"):
        body = {**CHAT, "chat_template_kwargs": {name: False}}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    body["chat_template_kwargs"]["thinking"] = True
    assert http.post("/v1/chat/completions", json=body).status_code == 400
    for sent in ({"think": False}, {"thinking": {"type": "disabled"}}, {"reasoning": {}},
                 {"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"}):  # fmt: skip
        assert http.post("/v1/chat/completions", json={**CHAT, **sent}).status_code == 200


def test_values_that_people_use_for_the_default(http: httpx.Client, engine: Any) -> None:
    for sent in ({"max_tokens": -1}, {"n_predict": -1}, {"stop": [""]}, {"stop": ""}, {}):
        assert http.post("/v1/completions", json={**TEXT, **sent}).status_code == 200
        sampling = engine.requests[-1].sampling
        assert sampling.max_tokens > 200 and sampling.stop == ()
    http.post("/v1/completions", json={**TEXT, "stop": ["", "x"], "seed": -1, "top_p": 0})
    sampling = engine.requests[-1].sampling
    assert (sampling.stop, sampling.seed) == (("x",), -1)
    assert sampling.greedy and sampling.top_p == 1.0


def test_priority_is_within_a_client(http: httpx.Client, engine: Any) -> None:
    for sent, priority in (
        ({}, 0),
        ({"service_tier": "auto"}, 0),
        ({"service_tier": "flex"}, 1),
        ({"service_tier": "priority"}, -1),
        ({"priority": 0}, 0),
        ({"priority": 7, "service_tier": "default"}, 7),
    ):
        assert http.post("/v1/completions", json={**TEXT, **sent}).status_code == 200
        assert engine.requests[-1].priority == priority
    both = {"priority": 7, "service_tier": "flex"}
    assert http.post("/v1/completions", json={**TEXT, **both}).status_code == 400


def test_the_documents_say_the_same(http: httpx.Client) -> None:
    page = field_tables.PAGE.read_text()
    inside = page.split(field_tables.BEGIN)[1].split(field_tables.END)[0]
    assert inside == field_tables.tables(), "run python tests/helpers/field_tables.py"
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    for model in MODELS:
        told = schemas[model.__name__]["properties"]
        assert set(told) == declared(model) | set(model.known)
    chat = schemas["ChatRequest"]["properties"]
    assert chat["mirostat"] == {"enum": [0, None]}
    assert chat["n_predict"]["anyOf"][0] == chat["max_tokens"]["anyOf"][0]
