"""A gateway on a loopback port, in a thread, in front of targets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import httpx
from helpers.scripted_target import ScriptedTarget

from tidemill.gateway.config import checked
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.probe import Probes
from tidemill.gateway.run import GatewayOptions, make_context, make_gateway
from tidemill.server.access.security import Security
from tidemill.telemetry.otel_options import OtelOptions


class Door:
    """A running gateway.

    Attributes:
        fleet: its targets.
        http: a client of it.
        context: of its server.
        records: of requests that have ended.
    """

    def __init__(
        self,
        table: dict[str, Any],
        security: Security,
        *,
        records: bool,
        otel: OtelOptions | None = None,
    ) -> None:
        options = GatewayOptions(checked(table), security=security, otel=otel)
        self.context, _ = make_context(options)
        self.records: list[Any] = []
        if records:
            from tidemill.contract.prices import Prices
            from tidemill.server.recording import Recording

            self.context.recording = Recording(
                self.records.append, Prices(), recent=self.context.recent
            )
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._security = security
        self._options = options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        self.http = httpx.Client(base_url=self.url, timeout=30)

    async def _run(self) -> None:
        self.fleet = Fleet(self._options.config, Random(1))
        self._server = make_gateway(self.context, self.fleet, self._security, drain_seconds=1)
        probes = Probes(self.fleet)
        for target in self.fleet.targets:
            if not target.config.names:
                await probes.look(target)
                if not target.models:  # the machine is busy
                    await probes.look(target)
        if self._options.config.routing.probe_seconds < 60:
            probes.start()
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            await asyncio.sleep(0.005)
        self._ready.set()
        await serving
        await probes.close()

    def close(self) -> None:
        """Stop it."""
        self.http.close()
        self._server.stop()
        self._thread.join(10)
        if self.context.exporter is not None:
            self.context.exporter.close()
        self._listener.close()


@contextmanager
def door(
    targets: Sequence[ScriptedTarget | dict[str, Any]],
    *,
    security: Security | None = None,
    records: bool = False,
    otel: OtelOptions | None = None,
    **table: Any,
) -> Iterator[Door]:
    """A gateway in front of targets, called a, b, c...; without probes unless the table says when.

    Args:
        targets: running ones (kind vllm, model m), or tables with a running one as `at`.
        security: keys.
        records: keep records of requests.
        otel: where its spans go.
        table: the rest of the gateway's file.
    """
    rows = []
    for name, target in zip("abcdefgh", targets, strict=False):
        row = {"name": name, "kind": "vllm", "models": ["m"]}
        if isinstance(target, dict):
            more = dict(target)
            row |= {"url": more.pop("at").url, **more}
        else:
            row["url"] = target.url
        rows.append(row)
    routing = {"probe_seconds": 3600.0, "wake_seconds": 0.0, **table.pop("routing", {})}
    whole = {"targets": rows, "routing": routing, **table}
    opened = Door(whole, security or Security(), records=records, otel=otel)
    try:
        yield opened
    finally:
        opened.close()


ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def streamed(client: httpx.Client, path: str, body: Any, **headers: str) -> tuple[int, str]:
    """Status and text of a streamed answer."""
    with client.stream("POST", path, json=body, headers=headers) as response:
        return response.status_code, response.read().decode()


def words_of(text: str) -> str:
    """The content of a stream of chat completions."""
    import json

    found = ""
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                found += choice["delta"].get("content") or ""
    return found
