"""Processes as actors of Ray, each with what it needs reserved on one node.

An actor's name says what it is, so that a controller that begins finds those of an earlier one.
Actors of engines are not started again by Ray: the controller decides whether an engine that is
lost is still wanted, and another one has another name, so that gateways do not take it for the
first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.cluster.actors import ProcessActor
from tidemill.cluster.placement import Phase, Placed, ProcessSpec

log = get_logger(__name__)

NAMESPACE = "tidemill"
CALL_SECONDS = 3.0
STRAY_SECONDS = 5.0
"""After which what was reserved for an actor that does not exist is given back."""

_NONE = "-"


@dataclass(slots=True)
class _Known:
    """An actor of this deployment.

    Attributes:
        handle: it.
        call: that it has not answered yet.
        said: what it answered last.
    """

    handle: Any
    call: Any = None
    said: dict[str, Any] = field(default_factory=dict)


def controller_name(deployment: str) -> str:
    """Of a deployment's controller."""
    return f"{deployment}/controller"


class RayPlacement:
    """See the module docstring. Ray is connected already.

    Args:
        deployment: its name.
    """

    def __init__(self, deployment: str) -> None:
        self._prefix = f"{deployment}/process/"
        self._known: dict[str, _Known] = {}
        self._strays: dict[str, float] = {}

    async def processes(self) -> list[Placed]:
        """See `Placement.processes`."""
        return await asyncio.to_thread(self._processes)

    async def nodes(self) -> list[str]:
        """See `Placement.nodes`."""
        import ray

        nodes = await asyncio.to_thread(ray.nodes)
        return sorted(one["NodeID"] for one in nodes if one["Alive"])

    async def start(self, spec: ProcessSpec) -> None:
        """See `Placement.start`."""
        await asyncio.to_thread(self._start, spec)

    async def write(self, name: str, files: dict[str, str]) -> bool:
        """See `Placement.write`."""
        return await asyncio.to_thread(self._call, name, "write", files, seconds=CALL_SECONDS)

    async def stop(self, name: str, seconds: float) -> None:
        """See `Placement.stop`."""
        await asyncio.to_thread(self._stop, name, seconds)

    # -- in threads: Ray's calls block -----------------------------------------------------------

    def _processes(self) -> list[Placed]:
        import ray

        names = [n for n in ray.util.list_named_actors() if n.startswith(self._prefix)]
        groups = self._groups()
        self._give_back(names, groups)
        for name in [name for name in self._known if name not in names]:
            del self._known[name]
        for name in names:
            if name not in self._known:
                try:
                    self._known[name] = _Known(ray.get_actor(name))
                except ValueError:
                    continue  # it has just ended
        self._ask()
        return [self._placed(name, groups) for name in names if name in self._known]

    def _ask(self) -> None:
        """Ask all how they are; one that does not answer at once may do so later."""
        import ray

        asked = list(self._known.values())
        for one in asked:
            if one.call is None:
                one.call = one.handle.describe.remote()
        calls = [one.call for one in asked]
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=0.5) if calls else ([], [])
        for one in asked:
            if one.call in done:
                try:
                    one.said = ray.get(one.call)
                except ray.exceptions.RayError as error:
                    one.said = {**one.said, "reason": str(error).split("\n", 1)[0]}
                one.call = None

    def _placed(self, name: str, groups: dict[str, str]) -> Placed:
        kind, pool, digest, node, short = name.removeprefix(self._prefix).split("/")
        said = self._known[name].said
        phase = Phase(said.get("phase", "starting"))
        if not said.get("node") and groups.get(name, "CREATED") != "CREATED":
            phase = Phase.PENDING
        return Placed(
            name=short,
            kind=kind,
            pool="" if pool == _NONE else pool,
            digest=digest,
            phase=phase,
            url=said.get("url", ""),
            node=said.get("node") or ("" if node == _NONE else node),
            exits=said.get("exits", 0),
            reason=said.get("reason", ""),
        )

    def _start(self, spec: ProcessSpec) -> None:
        import ray
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        name = self._prefix + "/".join(
            (spec.kind, spec.pool or _NONE, spec.digest, spec.node or _NONE, spec.name)
        )
        needs = {"CPU": spec.cpus, "GPU": spec.gpus, **spec.resources}
        bundle = {key: value for key, value in needs.items() if value}
        strategy: Any = "SPREAD"
        if spec.node is not None:
            strategy = NodeAffinitySchedulingStrategy(spec.node, soft=False)
        elif bundle:
            group = ray.util.placement_group(
                [bundle], strategy="STRICT_PACK", name=name, lifetime="detached"
            )
            strategy = PlacementGroupSchedulingStrategy(group, 0)
        ray.remote(ProcessActor).options(
            name=name,
            lifetime="detached",
            max_restarts=0,
            max_concurrency=4,
            num_cpus=spec.cpus,
            num_gpus=spec.gpus,
            resources=spec.resources,
            scheduling_strategy=strategy,
        ).remote(spec)

    def _call(self, name: str, method: str, *arguments: object, seconds: float) -> bool:
        import ray

        known = next((one for full, one in self._known.items() if full.endswith(f"/{name}")), None)
        if known is None:
            return False
        try:
            ray.get(getattr(known.handle, method).remote(*arguments), timeout=seconds)
        except ray.exceptions.RayError as error:
            log.warning("%s: %s: %s", name, method, str(error).split("\n", 1)[0])
            return False
        return True

    def _stop(self, name: str, seconds: float) -> None:
        import ray

        full = next((one for one in self._known if one.endswith(f"/{name}")), None)
        if full is None:
            return
        if self._known[full].said:  # else it runs nowhere yet
            self._call(name, "stop", seconds, seconds=seconds + 15)
        ray.kill(self._known[full].handle)
        if full in self._groups():
            ray.util.remove_placement_group(ray.util.get_placement_group(full))

    def _groups(self) -> dict[str, str]:
        """States of what is reserved for actors, by their names."""
        import ray

        table = ray.util.placement_group_table().values()
        return {
            one["name"]: one["state"]
            for one in table
            if one["name"].startswith(self._prefix) and one["state"] != "REMOVED"
        }

    def _give_back(self, names: list[str], groups: dict[str, str]) -> None:
        """Reservations of actors that are lost, with their nodes for instance."""
        import ray

        now = monotonic()
        alive = set(names)
        for name in [one for one in self._strays if one in alive or one not in groups]:
            del self._strays[name]
        for name in groups:
            if name in alive:
                continue
            if now - self._strays.setdefault(name, now) >= STRAY_SECONDS:
                log.warning("what was reserved for %s, which is lost, is given back", name)
                ray.util.remove_placement_group(ray.util.get_placement_group(name))
