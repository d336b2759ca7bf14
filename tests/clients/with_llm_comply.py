"""The published OpenAPI document of Anthropic's API, which llm-comply carries: every answer, event
and error validates against it."""

import json
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from common import MODEL, QUESTION, TOOL
from jsonschema import Draft202012Validator

URL = sys.argv[1].removesuffix("/v1")
SPEC = json.loads(
    (Path(find_spec("llm_comply").origin).parent / "specs/anthropic.json").read_text()
)
TOOLS = [{"name": "get_weather", "input_schema": TOOL["function"]["parameters"]}]
seen = 0


def check(name, document):
    """It has the schema of that name."""
    global seen
    seen += 1
    schema = {"$ref": f"#/components/schemas/{name}", "components": SPEC["components"]}
    faults = [
        f"{e.json_path}: {e.message}" for e in Draft202012Validator(schema).iter_errors(document)
    ]
    assert not faults, (name, document, faults)


def send(path, body=None):
    """The text of an answer, also of an error."""
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers)) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


ask = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": QUESTION}]}
answer = {}
for more in (
    {},
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": {"type": "any"}},
    {"thinking": {"type": "enabled", "budget_tokens": 40}},
    {"thinking": {"type": "adaptive", "display": "omitted"}, "stop_sequences": ["e"]},
    {"max_tokens": 2},
):
    answer = json.loads(send("/v1/messages", {**ask, **more}))
    check("Message", answer)
    for event in send("/v1/messages", {**ask, **more, "stream": True}).strip().split("\n\n"):
        document = json.loads(event.split("data: ", 1)[1])
        if document["type"] != "ping":
            check("MessageStreamEvent", document)
counted = {k: v for k, v in ask.items() if k != "max_tokens"}
check("CountMessageTokensResponse", json.loads(send("/v1/messages/count_tokens", counted)))
check("ListResponse_ModelInfo_", json.loads(send("/v1/models")))
check("ErrorResponse", json.loads(send("/v1/messages", {**ask, "model": "none"})))
check("ErrorResponse", json.loads(send("/v1/messages", {**ask, "max_tokens": -1})))
print(f"{seen} documents validate")
