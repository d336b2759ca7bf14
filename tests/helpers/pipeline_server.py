"""A server around a scripted engine with pipelines beside it."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from helpers.live_server import fake_context, serving
from helpers.loop_meter import LoopMeter
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.request import EngineRequest
from tidemill.server.context import ServerContext
from tidemill.server.host.pipelines.options import PipelineOptions
from tidemill.server.host.pipelines.pipeline import Pipeline
from tidemill.server.host.slot import Hosted
from tidemill.server.recording import Recording


def echo(request: EngineRequest, choice: int) -> list[int]:
    """The prompt itself, as the answer of a scripted engine."""
    return [*(t for t in request.prompt_token_ids if t < 256), 257]


class PipelineServer:
    """A running server; pipelines are files written by `file`.

    Attributes:
        engine: of the model ``tiny``.
        context: of the server.
        http: a client of it.
        loop: its event loop.
    """

    def __init__(self, folder: Path, engine: ScriptedEngine, context: ServerContext) -> None:
        self.engine = engine
        self.context = context
        self.http: httpx.Client
        self.loop: asyncio.AbstractEventLoop
        self._folder = folder

    def add(self, name: str, source: str, **options: Any) -> Pipeline:
        """Serve a pipeline."""
        file = self.write(name, source)
        made = PipelineOptions(name, str(file), **options)
        context = self.context
        pipeline = Pipeline(made, context.host, context.shared, context.metrics, context.build)
        context.host.add_loaded(Hosted(name), pipeline, pipeline)
        return pipeline

    def write(self, name: str, source: str) -> Path:
        """Write a pipeline's file."""
        file = self._folder / f"{name}.py"
        file.write_text("from __future__ import annotations\n" + textwrap.dedent(source))
        return file

    def drain(self, reason: str) -> None:
        """As a signal does."""

        async def drain() -> None:
            self.context.host.drain(reason)

        asyncio.run_coroutine_threadsafe(drain(), self.loop).result(20)

    def chat(self, model: str, text: str = "hi", **fields: Any) -> httpx.Response:
        """POST /v1/chat/completions."""
        messages = [{"role": "user", "content": text}]
        return self.http.post(
            "/v1/chat/completions", json={"model": model, "messages": messages, **fields}
        )

    def said(self, model: str, text: str = "hi", **fields: Any) -> str:
        """The content of a chat answer."""
        answer = self.chat(model, text, **fields)
        assert answer.status_code == 200, answer.text
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content


class _Loop(LoopMeter):
    """Keeps the server's event loop, and measures nothing."""

    loop: asyncio.AbstractEventLoop

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop


@contextmanager
def pipeline_server(
    folder: Path, recording: Recording | None = None, **engine: Any
) -> Iterator[PipelineServer]:
    """A running server."""
    scripted = ScriptedEngine(**{"script": echo, **engine})
    server = PipelineServer(folder, scripted, fake_context(scripted))
    server.context.recording = recording
    meter = _Loop()
    with (
        serving(server.context, meter=meter) as url,
        httpx.Client(base_url=url, timeout=30) as http,
    ):
        server.http, server.loop = http, meter.loop
        try:
            yield server
        finally:
            closing = server.context.host.close()
            asyncio.run_coroutine_threadsafe(closing, meter.loop).result(20)
