"""Looks at targets now and then: whether they are well, what they have, how long one waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.contract.gateway import PROTOCOL, interoperate
from tidemill.gateway import look
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.follow import follow
from tidemill.gateway.look import get
from tidemill.gateway.routing.health import State
from tidemill.gateway.targets import Target
from tidemill.gateway.wire.connection import Lost
from tidemill.gateway.wire.pool import Full

log = get_logger(__name__)

LOAD = "/load"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _ModelLoad(msgspec.Struct):
    wait: float = 0.0
    slots: int | None = None
    cache_tokens: int | None = None
    engine: str = ""
    role: str = ""


class _Load(msgspec.Struct):
    protocol: int = 0
    models: dict[str, _ModelLoad] = {}


class Probes:
    """Looks at every target of a fleet until it is closed.

    Args:
        fleet: the targets.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._tasks: dict[Target, asyncio.Future[Any]] = {}
        self._late = set[Target]()  # those that did not answer the latest look in time

    def start(self) -> None:
        """Begin, on the running event loop; again, once the fleet has other targets."""
        for one in self._fleet.targets:
            if one not in self._tasks and not self._fleet.is_here(one):
                followed = [follow(self._fleet, one)] if one.config.kind == "tidemill" else []
                self._tasks[one] = asyncio.gather(self._watch(one), *followed)

    async def leave(self, targets: Iterable[Target]) -> None:
        """Look at these no more; close what is idle of them."""
        found = {target: self._tasks.pop(target, None) for target in targets}
        tasks = [task for task in found.values() if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for target in found:
            target.pool.close()

    async def close(self) -> None:
        """End; close what is idle."""
        await self.leave([*self._fleet.targets])

    async def _watch(self, target: Target) -> None:
        while True:
            try:
                await self.look(target)
            except Exception:
                log.exception("target %s could not be looked at", target.name)
            await asyncio.sleep(self._fleet.config.routing.probe_seconds)

    async def look(self, target: Target) -> None:
        """Ask a target how it is. One that does not answer in time may only be busy, as the whole
        machine may: it is taken out when it is late a second time in a row."""
        before = target.health.state(monotonic())
        late = target in self._late
        self._late.discard(target)
        try:
            reason: str | None = await self._ask(target)
        except TimeoutError:
            self._late.add(target)
            reason = f"no answer within {look.SECONDS:g} s"
            if not late and before is State.CLOSED:
                log.info("target %s: %s; it is looked at again", target.name, reason)
                return
        now = monotonic()
        if reason is not None:
            if target.health.failed(now, reason, down=True) or before is not State.CLOSED:
                self._fleet.forget(target)
                if before is State.CLOSED:
                    log.warning("target %s is taken out: %s", target.name, reason)
            return
        if before is not State.CLOSED:
            log.warning("target %s is back", target.name)
            target.health.succeeded()
        self._fleet.changed()

    async def _ask(self, target: Target) -> str | None:
        """What is wrong with a target; None: nothing. Raises TimeoutError."""
        try:
            status, _ = await get(target, target.kind.probe)
            if status in (404, 405):  # a server of its kind without that route
                status, _ = await get(target, "/v1/models")
            if status >= 500 or status in (404, 405):
                return f"{target.kind.probe}: {status}"
            if not target.config.names:
                await _list(target)
            if target.config.kind == "tidemill":
                return await self._load(target)
        except Full:
            return None  # it answers others
        except Lost as error:
            return str(error)
        return None

    async def _load(self, target: Target) -> str | None:
        """Take what a target says of itself; what is wrong with it."""
        status, body = await get(target, LOAD)
        if status != 200:
            return None
        try:
            found = msgspec.json.decode(body, type=_Load)
        except msgspec.DecodeError:
            return None
        target.protocol = found.protocol
        if not interoperate(found.protocol, PROTOCOL):
            older = "it" if found.protocol < PROTOCOL else "this gateway"
            return f"protocol {found.protocol}, this gateway's is {PROTOCOL}: update {older} first"
        if found.models:
            # Models of one machine share it: the one that waits longest decides.
            target.load.announce(monotonic(), max(one.wait for one in found.models.values()))
            slots = [one.slots for one in found.models.values() if one.slots is not None]
            target.load.slots = sum(slots) if slots else None
        target.roles = {name: one.role for name, one in found.models.items()}
        sizes = [one.cache_tokens for one in found.models.values()]
        if sizes and None not in sizes:
            engines = {name: one.engine for name, one in found.models.items()}
            self._fleet.cached(target, sum(size or 0 for size in sizes), engines)
        return None


async def _list(target: Target) -> None:
    status, body = await get(target, "/v1/models")
    try:
        found = msgspec.json.decode(body, type=_Models) if status == 200 else None
    except msgspec.DecodeError:
        found = None
    if status in (401, 403):
        log.warning("target %s: %d: check its key (key_env)", target.name, status)
        return
    if found is None:
        log.warning("target %s does not list its models: name them in the file", target.name)
        return
    target.listed = frozenset(model.id for model in found.data)
