"""The controller: looks at all engines and gateways, decides, and has the placement act.

It keeps nothing that it could not find again: what runs is asked of the placement, how it is of the
servers, and what is wanted stands in the deployment. So it may end at any time, and another one
goes on; traffic does not pass through it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tidemill.base.clock import monotonic, wall
from tidemill.base.log import get_logger
from tidemill.cluster import gateways
from tidemill.cluster.config import Deployment, ModelConfig
from tidemill.cluster.observe import EngineView, GatewayView, Server
from tidemill.cluster.placement import ENGINE, GATEWAY, Phase, Placed, Placement, ProcessSpec
from tidemill.cluster.pool import Actions, Engine, Pool
from tidemill.cluster.scaling import EngineFacts, Held, State

log = get_logger(__name__)

DRAIN_SECONDS = 120.0
"""That an engine whose model the file no longer has may take for its last requests."""

STOP_SECONDS = 30.0
"""That a server may take to end once nobody asks it any more."""


class Controller:
    """See the module docstring.

    Args:
        deployment: what is wanted.
        placement: has processes run.
        clock: seconds that never go back.
        server: a server by its URL and key.

    Attributes:
        looked: set once it has looked at everything: before, its status says nothing.
    """

    def __init__(
        self,
        deployment: Deployment,
        placement: Placement,
        clock: Callable[[], float] = monotonic,
        server: Callable[[str, str], Server] = Server,
    ) -> None:
        self._deployment = deployment
        self._placement = placement
        self._clock = clock
        self._server = server
        self._models = {one.pool: one for one in deployment.config.models}
        self._pools = {
            name: Pool(one.objectives, one.digest, start_seconds=one.seconds("start"))
            for name, one in self._models.items()
        }
        self._engines: dict[str, EngineView] = {}
        self._gateways: dict[str, GatewayView] = {}
        self._seen: dict[str, float] = {}  # since when a process is known
        self._draining: dict[str, float] = {}  # until when
        self._written: dict[str, str] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._last: dict[str, Actions] = {}
        self._found: list[Placed] = []
        self._names = 0
        self.looked = threading.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.step()
            except Exception:
                log.exception("the cluster could not be looked at")
            await asyncio.sleep(self._deployment.config.interval)

    async def step(self) -> None:
        """Look at everything once, and do what is to be done."""
        found = [one for one in await self._placement.processes() if one.name not in self._stops]
        now = self._clock()
        self._found = found
        self._know(found, now)
        await self._look(found, now)
        for one in found:
            if one.kind == ENGINE and one.pool not in self._pools:
                self._drain(one.name, now, DRAIN_SECONDS)  # its model is gone from the file
        for name, pool in self._pools.items():
            engines = [self._engine(one, now) for one in found if self._is_engine(one, name)]
            actions = pool.plan(now, engines, self._held(self._models[name]))
            self._last[name] = actions
            await self._act(self._models[name], actions, now)
        await self._tell_gateways(found)
        await self._finish_drains(found, now)
        self.looked.set()

    # -- what there is -------------------------------------------------------------------------

    def _know(self, found: list[Placed], now: float) -> None:
        names = {one.name for one in found}
        for known in (self._seen, self._draining, self._written):
            for name in [name for name in known if name not in names]:
                del known[name]
        for views in (self._engines, self._gateways):
            for name in [name for name in views if name not in names]:
                views.pop(name).server.close()
        deployment = self._deployment
        for one in found:
            self._seen.setdefault(one.name, now)
            if not one.url:
                continue
            if one.kind == ENGINE:
                engine = self._engines.get(one.name)
                if engine is None:
                    server = self._server(one.url, deployment.engine_key)
                    self._engines[one.name] = EngineView(server)
                elif engine.server.url != one.url:  # it has begun anew, on another port
                    engine.server = self._server(one.url, deployment.engine_key)
            else:
                gateway = self._gateways.get(one.name)
                if gateway is None or gateway.server.url != one.url:
                    server = self._server(one.url, deployment.client_key)
                    self._gateways[one.name] = GatewayView(server)

    async def _look(self, found: Iterable[Placed], now: float) -> None:
        looks: list[Awaitable[None]] = []
        for one in found:
            if one.phase is not Phase.READY:
                continue
            if one.kind == GATEWAY:
                looks.append(self._gateways[one.name].look(now))
            else:
                model = self._models.get(one.pool)
                counts = model is not None and model.goodput is not None
                ttft = model.seconds("ttft") if model is not None and counts else None
                looks.append(self._engines[one.name].look(now, ttft))
        for failed in await asyncio.gather(*looks, return_exceptions=True):
            if isinstance(failed, Exception):
                log.error("a server of the cluster said what cannot be read: %s", failed)

    @staticmethod
    def _is_engine(placed: Placed, pool: str) -> bool:
        known = placed.kind == ENGINE and placed.pool == pool
        return known and placed.phase is not Phase.STOPPING

    def _engine(self, placed: Placed, now: float) -> Engine:
        view, since = self._engines.get(placed.name), self._seen[placed.name]
        state, silent = State.STARTING, 0.0
        facts = EngineFacts(name=placed.name, state=state)
        if placed.phase is Phase.PENDING:
            self._seen[placed.name] = since = now  # its time begins when there is room for it
        if view is not None and (placed.phase is Phase.READY or view.answered is not None):
            answered = view.answered
            if answered is not None:
                state, silent = State.READY, now - answered
            if view.leaving or placed.name in self._draining:
                state = State.DRAINING
                self._draining.setdefault(
                    placed.name, now + self._models[placed.pool].seconds("drain")
                )
            arrived = sum(one.arrived.get(placed.name, 0) for one in self._gateways.values())
            facts = view.facts(placed.name, state, arrived)
        return Engine(
            facts=facts,
            digest=placed.digest,
            pending=placed.phase is Phase.PENDING,
            since=since,
            exits=placed.exits,
            reason=placed.reason,
            silent=silent,
        )

    def _held(self, model: ModelConfig) -> Held:
        """Requests that wait at gateways for a model."""
        requests, tokens = 0, 0
        rates = [rate for one in self._gateways.values() for rate in one.rates.values() if rate]
        for one in self._gateways.values():
            more, their_tokens = one.held.get(model.name, (0, 0))
            requests, tokens = requests + more, tokens + their_tokens
        return Held(requests=requests, seconds=tokens / max(rates) if rates else 0.0)

    # -- engines -------------------------------------------------------------------------------

    async def _act(self, model: ModelConfig, actions: Actions, now: float) -> None:
        decision = actions.decision
        if actions.start or actions.drain or actions.restore or actions.stop:
            log.warning(
                "%s: %d engines wanted (%s): %d start, %s drain, %s stay, %s stop",
                model.pool,
                decision.desired,
                decision.reason,
                actions.start,
                ", ".join(actions.drain) or "none",
                ", ".join(actions.restore) or "none",
                ", ".join(actions.stop) or "none",
            )
        for name in actions.stop:
            self._stop(name, 0.0)
        for name in actions.drain:
            self._drain(name, now, model.seconds("drain"))
        for name in actions.restore:
            if await self._engines[name].server.post("/admin/engines/restore", {}) is not None:
                self._engines[name].leaving = False
                self._draining.pop(name, None)
        for _ in range(actions.start):
            await self._placement.start(self._spec(model))

    def _drain(self, name: str, now: float, seconds: float) -> None:
        self._draining.setdefault(name, now + seconds)

    async def _finish_drains(self, found: Iterable[Placed], now: float) -> None:
        """Have requests leave engines that drain, and stop those that have none any more. Gateways
        do not give them new ones by now."""
        for one in found:
            if one.name not in self._draining or one.name in self._stops:
                continue
            view = self._engines.get(one.name)
            if view is None or one.phase is not Phase.READY:
                self._stop(one.name, 0.0)
            elif not view.leaving:
                view.leaving = await view.server.post("/admin/engines/drain", {}) is not None
                if not view.leaving and now >= self._draining[one.name]:
                    self._stop(one.name, STOP_SECONDS)
            elif (view.answered == now and not view.load.server_load) or (
                now >= self._draining[one.name]
            ):
                self._stop(one.name, STOP_SECONDS)

    def _stop(self, name: str, seconds: float) -> None:
        async def stop() -> None:
            try:
                await self._placement.stop(name, seconds)
            except Exception:
                log.exception("%s could not be stopped", name)
            finally:
                del self._stops[name]

        if name not in self._stops:
            self._stops[name] = asyncio.ensure_future(stop())

    def _spec(self, model: ModelConfig) -> ProcessSpec:
        deployment = self._deployment
        threads = []
        if model.cpus >= 1 and not any(one.startswith("--threads") for one in model.args):
            threads = ["--threads", str(int(model.cpus))]
        passed = {name: deployment.passed[name] for name in model.pass_env}
        return ProcessSpec(
            name=self._name(model.pool),
            kind=ENGINE,
            pool=model.pool,
            digest=model.digest,
            arguments=(
                *("serve", model.model or model.name, "--served-name", model.name),
                *("--host", "{host}", "--port", "{port}", *threads, *model.args),
            ),
            env={**passed, **model.env, "TIDEMILL_API_KEY": deployment.engine_key},
            cpus=model.cpus,
            gpus=model.gpus,
            resources=model.resources,
            drain_seconds=model.seconds("drain"),
        )

    def _name(self, of: str) -> str:
        """A name that nothing had before; later ones are greater."""
        self._names = max(self._names + 1, int(wall() * 1e6))
        return f"{of}-{self._names:x}"

    # -- gateways ------------------------------------------------------------------------------

    async def _tell_gateways(self, found: Iterable[Placed]) -> None:
        """As many gateways as there should be, and all of them with the engines that are ready."""
        config = self._deployment.config
        targets = [
            gateways.target(one, self._models[one.pool])
            for one in sorted(found, key=lambda one: one.name)
            if one.kind == ENGINE and self._takes_requests(one)
        ]
        text = gateways.text(config.gateway_file(targets))
        existing = [one for one in found if one.kind == GATEWAY and one.phase is not Phase.STOPPING]
        for one in existing:
            stale = one.phase is Phase.READY and self._written.get(one.name) != text
            if stale and await self._placement.write(one.name, {gateways.FILE: text}):
                self._written[one.name] = text
        nodes = await self._placement.nodes() if config.gateway.per_node else None
        for node in gateways.missing(config.gateway, existing, nodes):
            name = self._name("gateway")
            await self._placement.start(gateways.spec(self._deployment, name, node, text))
        for name in gateways.surplus(self._deployment, existing, nodes):
            self._stop(name, STOP_SECONDS)

    def _takes_requests(self, placed: Placed) -> bool:
        view = self._engines.get(placed.name)
        # That it has not answered this controller yet is no reason to take it from the gateways.
        ready = placed.phase is Phase.READY and view is not None and not view.leaving
        gone = placed.name in self._draining or placed.name in self._stops
        return ready and not gone and placed.pool in self._models

    # -- status --------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What there is and what is wanted, for people and programs."""
        pools = {}
        for name, actions in self._last.items():
            model, decision = self._models[name], actions.decision
            held = self._held(model)
            pools[name] = {
                "model": model.name,
                "min": model.objectives.min_engines,
                "max": model.objectives.max_engines,
                "desired": decision.desired,
                "demand": round(decision.demand, 2),
                "reason": decision.reason,
                "held": held.requests,
                "problem": self._pools[name].problem,
            }
        return {
            "name": self._deployment.config.name,
            "pools": pools,
            "processes": [self._described(one) for one in self._found],
        }

    def _described(self, placed: Placed) -> dict[str, Any]:
        view = self._engines.get(placed.name)
        phase = str(placed.phase)
        if placed.name in self._draining or placed.name in self._stops:
            phase = "draining"
        described: dict[str, Any] = {
            "name": placed.name,
            "kind": placed.kind,
            "pool": placed.pool,
            "phase": phase,
            "url": placed.url,
            "node": placed.node,
            "exits": placed.exits,
            "reason": placed.reason,
        }
        if view is not None and placed.phase is Phase.READY:
            facts = view.facts(placed.name, State.READY, 0)
            described |= {"running": facts.running, "wait": round(facts.wait, 3)}
        return described
