"""/v1/responses/compact: the model sums a conversation up, and goes on with that."""

from __future__ import annotations

import httpx
import openai
import pytest
from helpers.marked_model import Model
from helpers.responses_api import create

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
INPUT = [
    {"role": "user", "content": "Mend the roof."},
    {"role": "assistant", "content": "I look at it."},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": "two tiles are missing"},
    {"role": "user", "content": "And the door."},
]
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def http(model: Model) -> httpx.Client:
    return model.http


def test_a_conversation_goes_on_with_its_summary(model: Model, http: httpx.Client) -> None:
    model.text = "Two tiles are missing."
    body = {"model": "tiny", "input": INPUT, "tools": [TOOL], "instructions": "You mend houses."}
    # OpenAI's own type has no users' messages among the items, although its answers do.
    base = str(http.base_url).rstrip("/") + "/v1"
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    found = client.responses.compact(
        model="tiny", input=INPUT, instructions="You mend houses.", extra_body={"tools": [TOOL]}
    )
    assert [item.type for item in found.output] == ["message", "message", "compaction"]
    assert found.usage.input_tokens > 0 and found.usage.output_tokens > 0
    asked = model.prompt()
    model.text = "Two tiles are missing."
    assert "two tiles are missing" in asked and "Sum this conversation up" in asked
    assert "You mend houses." in asked and '"look"' in asked
    items = http.post("/v1/responses/compact", json=body).json()["output"]
    model.text = "I mend it."
    create(http, model="tiny", input=[*items, {"role": "user", "content": "Go on."}])
    asked = model.prompt()
    assert "Mend the roof." in asked and "Two tiles are missing." in asked
    assert "two tiles are missing" not in asked.replace("Two tiles are missing", "")
    # What is summed up again is not there twice.
    again = http.post("/v1/responses/compact", json={"model": "tiny", "input": items}).json()
    assert [item["type"] for item in again["output"]] == ["message", "message", "compaction"]


def test_of_a_stored_response(model: Model, http: httpx.Client) -> None:
    model.text = "Hello."
    first = create(http, model="tiny", input="Who?")
    model.text = "They met."
    body = {"model": "tiny", "previous_response_id": first["id"]}
    found = http.post("/v1/responses/compact", json=body).json()
    assert found["output"][0]["content"][0]["text"] == "Who?"
    assert http.get(f"/v1/responses/{found['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "text", "named"),
    [
        ({"input": "Who?"}, "  ", None),
        ({"input": "Who?", "stream": True}, "a", "stream"),
        ({"input": []}, "a", "input"),
        ({"input": "Who?", "model": "dodo"}, "a", "model"),
    ],
)
def test_refusals(
    model: Model, http: httpx.Client, body: dict[str, object], text: str, named: str | None
) -> None:
    model.text = text
    refused = http.post("/v1/responses/compact", json={"model": "tiny", **body})
    assert refused.status_code in (400, 404) and refused.json()["error"]["param"] == named
