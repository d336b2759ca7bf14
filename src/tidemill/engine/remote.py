"""RemoteEngine: another server's engine, which computes requests of this server.

The connection is a `transfer.link` until the engine has said what time it is there and which
configuration it has; then it is that of any client (`engine.connection`). Times of requests and of
outputs are shifted between the two clocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, config_error
from tidemill.contract.request import AdapterUse, ChoiceOutput, EngineRequest
from tidemill.contract.wire import Cancel, EngineInfo, Outputs, Submit
from tidemill.engine.connection import EngineConnection, unavailable
from tidemill.transfer.link import (
    KEY_VARIABLE,
    Link,
    LinkError,
    Role,
    connect,
    host_and_port,
    key_from_environment,
)

SAME_CLOCK_SECONDS = 0.05
"""Clocks that differ by less than this and the way between them are the same one."""


LOOK_SECONDS = 2.0
SILENCE_SECONDS = 8.0
"""An engine that does not say how it is for so long is lost: the network may not tell. It answers
between two steps."""


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """What an engine says first: its `base.clock.monotonic`, and its configuration's digest."""

    now: float
    config_digest: str


class RemoteEngine:
    """See the module docstring. Made by `open`.

    Args:
        address: HOST:PORT.
        connection: to the engine.
        ahead: seconds by which its clock is ahead of this one.
    """

    def __init__(self, address: str, connection: EngineConnection, ahead: float) -> None:
        self.address = address
        self._connection = connection
        self._ahead = ahead
        self._watch = asyncio.create_task(self._watching(), name="tidemill-remote")

    @classmethod
    async def open(
        cls,
        address: str,
        on_outputs: Callable[[Outputs], None],
        on_lost: Callable[[str], None],
    ) -> RemoteEngine:
        """Connect to an engine that listens at HOST:PORT (its `kv_listen`).

        Raises:
            TidemillError: CONFIG for the address or without a key, UNAVAILABLE where no engine with
                this key and build listens.
        """
        try:
            host_and_port(address)
            key = key_from_environment()
        except ValueError as error:
            raise config_error("to", f"to: {error}") from None
        if key is None:
            raise config_error("to", f"the engines' key is not set in {KEY_VARIABLE}")
        try:
            link, clock, ahead = await asyncio.to_thread(_open, address, key)
        except (LinkError, OSError) as error:
            raise unavailable(f"no engine is reached at {address}: {error}") from None

        def shifted(message: Outputs) -> None:
            # Its statistics are not those of this server's engine.
            outputs = message.outputs
            if ahead:
                outputs = tuple(_output(one, -ahead) for one in outputs)
            on_outputs(Outputs(outputs))

        connection = await EngineConnection.over(
            link.detach(), clock.config_digest, shifted, on_lost
        )
        return cls(address, connection, ahead)

    @property
    def info(self) -> EngineInfo:
        """The properties that the engine resolved at its start."""
        return self._connection.info

    def submit(self, request: EngineRequest) -> None:
        """Start a request."""
        self._connection.send(Submit(_request(request, self._ahead) if self._ahead else request))

    def cancel(self, wire_id: str, choice: int | None, reason: str) -> None:
        """Stop a request's choice (None: all)."""
        self._connection.send(Cancel(wire_id, choice, reason))

    async def has_adapter(self, digest: str) -> bool:
        """Whether an adapter with this content is registered there."""
        try:
            await self._connection.check_adapter(AdapterUse("", "", digest))
        except TidemillError:
            return False
        return True

    async def close(self, reason: str) -> None:
        """End the connection."""
        self._watch.cancel()
        await self._connection.close(reason)

    def abort(self, reason: str) -> None:
        """It is lost: what it has been given goes elsewhere."""
        self._connection.abort(reason)

    async def _watching(self) -> None:
        try:
            while self._connection.open:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._connection.stats()
                await asyncio.sleep(LOOK_SECONDS)
        except (TidemillError, TimeoutError):
            self._connection.abort("it does not answer")


def _open(address: str, key: bytes) -> tuple[Link, Clock, float]:
    begun = monotonic()
    link = connect(address, key, Role.REQUESTS)
    try:
        clock = link.receive(Clock)
    except BaseException:
        link.close()
        raise
    ended = monotonic()
    ahead = clock.now - (begun + ended) / 2
    same = abs(ahead) < SAME_CLOCK_SECONDS + (ended - begun)
    return link, clock, 0.0 if same else ahead


def _request(request: EngineRequest, seconds: float) -> EngineRequest:
    deadline, start_by = request.deadline, request.start_by
    return msgspec.structs.replace(
        request,
        arrival=request.arrival + seconds,
        deadline=None if deadline is None else deadline + seconds,
        start_by=None if start_by is None else start_by + seconds,
    )


def _output(output: ChoiceOutput, seconds: float) -> ChoiceOutput:
    timings = output.timings
    if timings is None and not output.scheduled and output.history is None:
        return output
    if timings is not None:
        names = ("received", "first_scheduled", "first_token", "finished")
        at = {name: time + seconds for name in names if (time := getattr(timings, name))}
        timings = msgspec.structs.replace(timings, **at)
    scheduled = output.scheduled + seconds if output.scheduled else 0.0
    # What it tells is in the other clock throughout.
    return msgspec.structs.replace(output, timings=timings, scheduled=scheduled, history=None)
