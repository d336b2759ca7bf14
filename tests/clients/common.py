"""The conversation that every client holds with brook."""

import json

MODEL = "brook"
QUESTION = "What is the weather in Paris?"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


def get_weather(city: str) -> dict:
    """Get the current weather of a city."""
    assert city == "Paris", city
    return {"temperature": 17, "condition": "rain"}


def as_text(city: str) -> str:
    """The result as JSON text."""
    return json.dumps(get_weather(city))
