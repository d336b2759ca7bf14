"""A real uvicorn on a loopback port, in a thread, around any application."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.loop_meter import LoopMeter
from helpers.scripted_engine import ScriptedEngine
from helpers.tiny_text import tokenizer_data

from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security
from tidemill.server.context import ServerContext
from tidemill.server.transport.http import make_server
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer


def fake_context(engine: ScriptedEngine, **changes: object) -> ServerContext:
    """A server around a fake engine."""
    data = tokenizer_data()
    values: dict[str, object] = {
        "client": engine,
        "tokenizer": Tokenizer(data),
        "template": ChatTemplate(data.chat_template, data.special),
        "defaults": {},
        "limits": Limits(),
        "build": "test",
        "config_digest": "0",
    }
    return ServerContext(**{**values, **changes})  # type: ignore[arg-type]


@contextmanager
def serving(
    context: ServerContext, security: Security | None = None, meter: LoopMeter | None = None
) -> Iterator[str]:
    """The base URL of a running server, whose event loop `meter` measures."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = make_server(context, drain_seconds=1, security=security)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        if time.monotonic() > deadline:
            raise RuntimeError("the test server did not start")
        time.sleep(0.01)
    if meter is not None:
        assert server._loop is not None
        meter.attach(server._loop)
    try:
        scheme = "https" if security and security.certificates else "http"
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(10)
        listener.close()
