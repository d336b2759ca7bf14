"""Ollama's own client, sync and async: chat, tools, structure, generate, embed, models, errors."""

import asyncio
import sys

import ollama
from common import MODEL, QUESTION, TOOL, as_text

host = sys.argv[1].removesuffix("/v1")
client = ollama.Client(host=host)
how = {"model": MODEL, "options": {"temperature": 0}}
messages = [{"role": "user", "content": QUESTION}]
first = client.chat(messages=messages, tools=[TOOL], **how)
(call,) = first.message.tool_calls
result = as_text(**call.function.arguments)
messages += [first.message, {"role": "tool", "tool_name": call.function.name, "content": result}]
last = client.chat(messages=messages, tools=[TOOL], **how)
assert "17" in last.message.content and last.done_reason == "stop"
assert last.eval_count > 0 and last.eval_duration > 0 and last.prompt_eval_count > 0
streamed = list(client.chat(messages=messages, tools=[TOOL], stream=True, **how))
assert "".join(part.message.content for part in streamed) == last.message.content
calls = [part.message.tool_calls for part in client.chat(messages=messages[:1], tools=[TOOL],
                                                         stream=True, **how)]  # fmt: skip
assert [c for part in calls for c in part or ()] == [call]
person = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
ask = [{"role": "user", "content": "Extract name and age as JSON. Meet Dora. The age is 43."}]
structured = client.chat(messages=ask, format=person, **how).message.content
assert '"Dora"' in structured and "43" in structured
assert client.chat(messages=ask, logprobs=True, top_logprobs=2, **how).logprobs[0].top_logprobs
whole = client.generate(prompt=QUESTION, **how)
parts = client.generate(prompt=QUESTION, stream=True, **how)
assert "".join(part.response for part in parts) == whole.response
assert client.generate(prompt="The sky", raw=True, **how).response
assert client.generate(model=MODEL, keep_alive=-1).done_reason == "load"
assert len(client.embed(model=MODEL, input=["a", "b"]).embeddings) == 2
assert client.embeddings(model=MODEL, prompt="a").embedding
assert client.list().models[0].model == MODEL
assert client.ps().models[0].context_length > 0
shown = client.show(MODEL)
assert {"completion", "tools"} <= set(shown.capabilities) and shown.details.parameter_size
made = client.create("pirate", from_=MODEL, system="You are a pirate.", stream=False)
assert made.status == "success" and client.show("pirate").modelfile
client.copy("pirate", "corsair")
assert {"pirate", "corsair"} <= {listed.model for listed in client.list().models}
assert client.chat("corsair", messages=ask, options={"temperature": 0}).message.content
assert client.delete("corsair").status == "success" and client.delete("pirate").status == "success"
digest = client.create_blob(__file__)
assert digest.startswith("sha256:") and client.create_blob(__file__) == digest  # it has it
try:
    client.create("mine", files={"mine.gguf": digest}, stream=False)
except ollama.ResponseError as error:
    assert error.status_code == 400 and "no GGUF file" in error.error
else:
    raise AssertionError("a script is no model")
try:
    client.push(MODEL, stream=False)
except ollama.ResponseError as error:
    assert error.status_code == 400 and "registry" in error.error
else:
    raise AssertionError("pushed")
for wrong in ({"model": "nope"}, {"options": {"mirostat": 1}}):
    try:
        client.chat(messages=messages[:1], **{**how, **wrong})
    except ollama.ResponseError as error:
        assert error.status_code in (400, 404) and error.error
    else:
        raise AssertionError(wrong)


async def concurrently() -> None:
    """The asynchronous client."""
    other = ollama.AsyncClient(host=host)
    answers = await asyncio.gather(
        *(other.chat(messages=messages, tools=[TOOL], **how) for _ in range(2))
    )
    assert {answer.message.content for answer in answers} == {last.message.content}
    async for _ in await other.chat(messages=messages, stream=True, **how):
        break  # leaves in the middle


asyncio.run(concurrently())
print(last.message.content)
