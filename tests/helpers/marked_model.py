"""A served model that writes what a test says, with brook's chat template and marks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from helpers.assembled import agree
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine, fake_info

from tidemill.text.template import ChatTemplate

TEMPLATE = (Path(__file__).parents[2] / "training" / "chat_template.jinja").read_text()

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A tool with one parameter."""
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **more}}


TOOLS = [tool("get_weather", description="Weather"), tool("get_time")]
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Zürich"}}\n</tool_call>'


class Model:
    """A server whose model writes `text`, whatever it is asked and whatever should rule it."""

    def __init__(self, **changes: Any) -> None:
        self.text = ""
        self.engine = ScriptedEngine(
            lambda request, choice: [*self.text.encode(), EOS],
            info=fake_info(max_model_len=8192),
        )
        values = {"template": ChatTemplate(TEMPLATE), **changes}
        self.context = fake_context(self.engine, **values)
        self.http = httpx.Client(timeout=30)

    def ask(self, text: str, **body: Any) -> dict[str, Any]:
        """Streamed and not, which must agree; the first choice."""
        self.text = text
        found: dict[str, Any] = agree(self.http, {"messages": ASK, **body})
        return found["choices"][0]

    def refusal(self, **body: Any) -> dict[str, Any]:
        """The error of a request that must be a 400."""
        answer = self.http.post("/v1/chat/completions", json={"messages": ASK, **body})
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error

    def prompt(self) -> str:
        """The latest prompt's text."""
        return bytes(t for t in self.engine.requests[-1].prompt_token_ids if t < 256).decode()


@contextmanager
def marked_model(**changes: Any) -> Iterator[Model]:
    """A running one."""
    made = Model(**changes)
    with serving(made.context) as url:
        made.http.base_url = httpx.URL(url)
        yield made
