"""instructor: pydantic models by tools and by JSON schema, then a tool conversation's answer."""

import json
import sys

import instructor
import openai
from common import MODEL, QUESTION, TOOL, get_weather
from pydantic import BaseModel


class Person(BaseModel):
    """Fields of a paragraph."""

    name: str
    age: int


client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
text = "Extract name and age as JSON. Meet Dora Kilm. The age is 43."
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
    person = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL,
        temperature=0,
        response_model=Person,
        messages=[{"role": "user", "content": text}],
        max_retries=0,
    )
    assert isinstance(person, Person), person


class GetWeather(BaseModel):
    """Get the current weather of a city."""

    city: str


asked = instructor.from_openai(client).chat.completions.create(
    model=MODEL,
    temperature=0,
    response_model=GetWeather,
    messages=[{"role": "user", "content": QUESTION}],
    max_retries=0,
)
result = json.dumps(get_weather(asked.city))
arguments = json.dumps({"city": asked.city})
call = {"id": "call_1", "type": "function"}
call["function"] = {"name": "get_weather", "arguments": arguments}
last = client.chat.completions.create(
    model=MODEL,
    temperature=0,
    tools=[TOOL],
    messages=[
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ],
).choices[0].message.content  # fmt: skip
assert "17" in last, last
print(last)
