"""Semantic Kernel: a plugin called by itself, every execution setting, a history that goes on."""

import asyncio
import sys

from common import MODEL, QUESTION, as_text
from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function


class Weather:
    @kernel_function(name="get_weather", description="Get the current weather of a city.")
    def get_weather(self, city: str) -> str:
        """The weather as JSON."""
        return as_text(city)


async def main() -> None:
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="none")
    service = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
    kernel = Kernel()
    kernel.add_service(service)
    kernel.add_plugin(Weather(), plugin_name="w")
    history = ChatHistory()
    history.add_user_message(QUESTION)
    settings = OpenAIChatPromptExecutionSettings(
        temperature=0, max_tokens=100, top_p=1, presence_penalty=0, frequency_penalty=0, seed=1,
        number_of_responses=1, stop=["Observation:"], logit_bias={}, user="u", store=False,
        parallel_tool_calls=True, metadata={"a": "b"},
        function_choice_behavior=FunctionChoiceBehavior.Auto(),
    )  # fmt: skip
    answer = await service.get_chat_message_content(history, settings, kernel=kernel)
    assert answer is not None
    history.add_message(answer)
    history.add_user_message("Thanks.")
    plain = OpenAIChatPromptExecutionSettings()
    again = await service.get_chat_message_content(history, plain)
    assert again is not None
    parts = [p async for p in service.get_streaming_chat_message_content(history, plain)]
    assert parts
    print(str(answer).splitlines()[0][:100] if str(answer) else "(empty)")


asyncio.run(main())
