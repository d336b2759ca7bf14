"""A real uvicorn on a loopback port, in a thread, around any application."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from helpers.fake_loader import FakeLoaded, FakeLoader
from helpers.loop_meter import LoopMeter
from helpers.scripted_engine import ScriptedEngine
from helpers.tiny_text import tokenizer_data

from tidemill.grammar.schema import prepared
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.app import DIALECTS, make_http_server
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Dialect
from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Hosted
from tidemill.text.answering import ChatSide
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer


def fake_context(
    engine: ScriptedEngine, *, limits: Limits | None = None, **changes: Any
) -> ServerContext:
    """A server around a fake engine; see `add_model`."""
    context = ServerContext(limits=limits or Limits(), build="test")
    add_model(context, engine, **changes)
    return context


def add_model(context: ServerContext, engine: ScriptedEngine, **changes: Any) -> ServedModel:
    """Serve a fake engine, too; see `make_model`."""
    model = make_model(context, engine, **changes)
    hosted = Hosted(model.name, model.aliases)
    context.host.add_loaded(hosted, FakeLoader(model), FakeLoaded(model))
    return model


def make_model(
    context: ServerContext,
    engine: ScriptedEngine,
    *,
    admission_options: AdmissionOptions | None = None,
    tokenizer: Tokenizer | None = None,
    template: ChatTemplate | None = None,
    chat: ChatSide | None = None,
    **changes: Any,
) -> ServedModel:
    """A model with a fake engine; `changes` are fields of `ServedModel`."""
    data = tokenizer_data()
    tokenizer = tokenizer or Tokenizer(data)
    template = template or ChatTemplate(data.chat_template, data.special)
    return ServedModel(
        client=engine,
        tokenizer=tokenizer,
        template=template,
        chat=chat or ChatSide.of(tokenizer, template, prepared),
        admission=context.shared.admission(
            engine.info.model, admission_options or AdmissionOptions(), lambda: engine.info
        ),
        metrics=context.metrics.of(engine.info.model),
        build="test",
        config_digest="0",
        **changes,
    )


@contextmanager
def serving(
    context: ServerContext,
    security: Security | None = None,
    meter: LoopMeter | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
) -> Iterator[str]:
    """The base URL of a running server, whose event loop `meter` measures."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = make_http_server(context, drain_seconds=1, security=security, dialects=dialects)
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
