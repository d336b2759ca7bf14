"""pydantic-ai: an agent with a tool, whole and streamed; an output type; every model setting."""

import asyncio
import sys

from common import MODEL, QUESTION, as_text
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

PERSON = "Extract name and age as JSON. Meet Dora Kilm. The age is 43."
# Every setting that the client offers for this API and that says something to the server.
SETTINGS = OpenAIChatModelSettings(
    max_tokens=200, temperature=0, top_p=1, timeout=60, parallel_tool_calls=True, seed=1,
    presence_penalty=0, frequency_penalty=0, logit_bias={}, stop_sequences=["Observation:"],
    openai_reasoning_effort="none", openai_user="u", openai_service_tier="default",
    openai_logprobs=False, openai_prompt_cache_key="k", openai_store=False,
    openai_continuous_usage_stats=True, openai_prompt_cache_retention="24h",
)  # fmt: skip


class Person(BaseModel):
    """Fields of a paragraph."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """Get the current weather of a city.

    Args:
        city: The city
    """
    return as_text(city)


async def main() -> None:
    provider = OpenAIProvider(base_url=sys.argv[1], api_key="none")
    model = OpenAIChatModel(MODEL, provider=provider)
    agent = Agent(model, tools=[get_weather])
    done = await agent.run(QUESTION, model_settings={"temperature": 0})
    assert "17" in done.output, done.output
    every = await agent.run(QUESTION, model_settings=SETTINGS)
    assert "17" in every.output, every.output
    async with agent.run_stream(QUESTION, model_settings=SETTINGS) as stream:
        streamed = await stream.get_output()
    assert "17" in streamed, streamed
    again = await agent.run("Thanks.", message_history=done.all_messages())
    assert again.output is not None
    from pydantic_ai import NativeOutput

    native = Agent(model, output_type=NativeOutput(Person), model_settings={"temperature": 0})
    person = (await native.run(PERSON)).output
    assert person == Person(name="Dora Kilm", age=43), person
    by_tool = Agent(model, output_type=Person, model_settings={"temperature": 0})
    assert isinstance((await by_tool.run(PERSON)).output, Person)
    print(done.output)


asyncio.run(main())
