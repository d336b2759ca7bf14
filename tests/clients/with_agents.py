"""openai-agents: an agent with a function tool runs to its final output, by chat and by Responses,
whole and streamed."""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import MODEL, QUESTION, as_text
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool(strict_mode=False)
def get_weather(city: str) -> str:
    """Get the current weather of a city.

    Args:
        city: The city
    """
    return as_text(city)


async def main() -> None:
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="none")
    for api in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        agent = Agent(
            name="helper",
            model=api(model=MODEL, openai_client=client),
            model_settings=ModelSettings(temperature=0),
            tools=[get_weather],
        )
        done = await Runner.run(agent, QUESTION, max_turns=4)
        assert "17" in done.final_output, done.final_output
        streamed = Runner.run_streamed(agent, QUESTION, max_turns=4)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == done.final_output
    print(done.final_output)


asyncio.run(main())
