"""The llm command's library: streams, a tool that it calls itself, and a schema."""

import json
import os
import sys
import tempfile
from pathlib import Path

from common import MODEL, QUESTION, get_weather

home = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = home.name
entry = {
    "model_id": MODEL,
    "model_name": MODEL,
    "api_base": sys.argv[1],
    "supports_tools": True,
    "supports_schema": True,
}
# JSON is YAML, too.
Path(home.name, "extra-openai-models.yaml").write_text(json.dumps([entry]))

import llm  # noqa: E402

model = llm.get_model(MODEL)
model.key = "none"
how = {"temperature": 0, "max_tokens": 64}
whole = model.prompt("Who are you?", stream=False, **how).text()
streamed = list(model.prompt("Who are you?", **how))
assert "".join(streamed) == whole and len(streamed) > 1
chain = model.chain(QUESTION, tools=[get_weather], options=how)
answer = chain.text()
assert "17" in answer, answer
schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
found = model.prompt("Extract as JSON. Meet Dora. The age is 43.", schema=schema, **how).text()
assert json.loads(found)["age"] == 43, found
print(answer)
