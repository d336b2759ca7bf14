"""A server around a fake engine on a loopback port."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.context import ServerContext


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def context(engine: ScriptedEngine) -> ServerContext:
    return fake_context(engine)


@pytest.fixture(scope="module")
def base_url(context: ServerContext) -> Iterator[str]:
    with serving(context) as url:
        yield url


@pytest.fixture(scope="module")
def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0)
