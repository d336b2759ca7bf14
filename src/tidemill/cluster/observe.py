"""What engines and gateways say of themselves, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tidemill.cluster.scaling import EngineFacts, State
from tidemill.gateway.wire.connection import Lost
from tidemill.gateway.wire.pool import Address, Full, Pool

SECONDS = 3.0
"""That a server has to answer."""

MAX_BYTES = 8 << 20


class Server:
    """One server of the deployment.

    Args:
        url: where it is.
        key: that it asks for; empty: none.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        address = Address.parse(url)
        self._pool = Pool(address, 8, SECONDS)
        lines = [f"host: {address.authority}", "user-agent: tidemill-cluster"]
        if key:
            lines.append(f"authorization: Bearer {key}")
        self._head = " HTTP/1.1\r\n" + "".join(f"{line}\r\n" for line in lines)

    async def get(self, path: str) -> bytes | None:
        """The body at a path; None: it did not answer well."""
        return await self._ask(f"GET {path}{self._head}\r\n".encode())

    async def post(self, path: str, body: Mapping[str, object]) -> bytes | None:
        """The answer to a POST; None: it did not answer well."""
        data = msgspec.json.encode(body)
        head = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        return await self._ask(f"POST {path}{self._head}{head}".encode() + data)

    async def _ask(self, request: bytes) -> bytes | None:
        try:
            async with asyncio.timeout(SECONDS), self._pool.exchange(request) as connection:
                status = await connection.head()
                body = await connection.read_all(MAX_BYTES)
        except (Lost, Full, TimeoutError):
            return None
        return body if status == 200 else None

    def close(self) -> None:
        """Close what is idle."""
        self._pool.close()


class _Model(msgspec.Struct):
    wait: float = 0.0
    queued_tokens: int = 0
    slots: int | None = None


class _Load(msgspec.Struct):
    server_load: int = 0
    models: dict[str, _Model] = {}


class _EngineState(msgspec.Struct):
    requests: int = 0
    leaving: bool = False


class _Engines(msgspec.Struct):
    engines: list[_EngineState] = []


class _Target(msgspec.Struct):
    name: str
    given: int = 0
    prompt_tokens_per_second: float = 0.0


class _Queue(msgspec.Struct):
    requests: int = 0
    prompt_tokens: int = 0


class _Targets(msgspec.Struct):
    targets: list[_Target] = []
    held: dict[str, _Queue] = {}


@dataclass(slots=True)
class EngineView:
    """What is known of one engine.

    Attributes:
        server: it.
        leaving: it is being drained.
        answered: when it last answered; None: never.
        buckets: of its first tokens, when they were last read: requests within the objective, and
            all.
    """

    server: Server
    leaving: bool = False
    answered: float | None = None
    load: _Load = field(default_factory=_Load)
    buckets: tuple[float, float] | None = None
    goodput: float | None = None

    async def look(self, now: float, ttft: float | None) -> None:
        """Ask it how it is.

        Args:
            now: the time.
            ttft: seconds to the first token that count as good; None: nobody asks.
        """
        load, engines = await asyncio.gather(
            self.server.get("/load"), self.server.get("/admin/engines")
        )
        if load is None:
            return
        self.load = msgspec.json.decode(load, type=_Load)
        if engines is not None:
            found = msgspec.json.decode(engines, type=_Engines).engines
            self.leaving = any(one.leaving for one in found)
        self.answered = now
        if ttft is not None:
            self._read_goodput(await self.server.get("/metrics"), ttft)

    def _read_goodput(self, text: bytes | None, ttft: float) -> None:
        if text is None:
            return
        found, before = first_tokens(text.decode(), ttft), self.buckets
        self.buckets = found
        if before is not None and found[1] > before[1]:
            self.goodput = max(0.0, found[0] - before[0]) / (found[1] - before[1])
        else:
            self.goodput = None

    def facts(self, name: str, state: State, arrived: int) -> EngineFacts:
        """As the autoscaler takes them."""
        models = self.load.models.values()
        slots = [one.slots for one in models if one.slots is not None]
        return EngineFacts(
            name=name,
            state=state,
            wait=max((one.wait for one in models), default=0.0),
            queued_tokens=sum(one.queued_tokens for one in models),
            running=self.load.server_load,
            arrived=arrived,
            slots=sum(slots) if slots else None,
            goodput=self.goodput,
        )


@dataclass(slots=True)
class GatewayView:
    """What is known of one gateway.

    Attributes:
        server: it.
        given: requests that it has given each target so far.
        arrived: of these, since the look before.
        rates: prompt tokens per second of each target, as measured.
        held: requests and prompt tokens that wait, by model.
    """

    server: Server
    given: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    answered: float | None = None

    async def look(self, now: float) -> None:
        """Ask it how it is."""
        body = await self.server.get("/admin/targets")
        if body is None:
            return
        found = msgspec.json.decode(body, type=_Targets)
        given = {one.name: one.given for one in found.targets}
        self.arrived = {name: max(0, n - self.given.get(name, 0)) for name, n in given.items()}
        self.given = given
        self.rates = {one.name: one.prompt_tokens_per_second for one in found.targets}
        self.held = {name: (one.requests, one.prompt_tokens) for name, one in found.held.items()}
        self.answered = now


def first_tokens(text: str, seconds: float) -> tuple[float, float]:
    """Of the metrics of an engine: requests whose first token came within so many seconds, as far
    as the histogram's bounds can say, and all."""
    good: dict[str, tuple[float, float]] = {}
    total = 0.0
    for line in text.splitlines():
        if line.startswith("tidemill_ttft_seconds_count"):
            total += float(line.rpartition(" ")[2])
        elif line.startswith("tidemill_ttft_seconds_bucket"):
            labels, _, value = line.rpartition(" ")
            before, _, rest = labels.partition('le="')
            bound = float(rest.partition('"')[0])
            series = before + rest.partition('"')[2]
            if bound <= seconds and bound >= good.get(series, (0.0, 0.0))[0]:
                good[series] = (bound, float(value))
    return sum(count for _, count in good.values()), total
