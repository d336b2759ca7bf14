"""The controller over a placement of the test's own: what it starts, tells and stops."""

from __future__ import annotations

import asyncio
import tomllib
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tidemill.cluster.config import checked, deployment
from tidemill.cluster.controller import Controller
from tidemill.cluster.observe import Server
from tidemill.cluster.placement import ENGINE, GATEWAY, Phase, Placed, ProcessSpec

START_SECONDS = 3.0


@dataclass
class Running:
    """A process of the fake cluster, and what its server says."""

    spec: ProcessSpec
    at: float
    file: str = ""
    running: int = 0
    wait: float = 0.0
    leaving: bool = False
    silent: bool = False
    held: int = 0
    given: dict[str, int] = field(default_factory=dict)


class Machines:
    """A placement: processes get ready after a while, and nodes have room for so many."""

    def __init__(self, room: int = 8) -> None:
        self.now = 100.0
        self.room = room
        self.alive: dict[str, Running] = {}
        self.stopped: list[str] = []
        self.ids = ["n1", "n2"]

    async def processes(self) -> list[Placed]:
        found, room = [], self.room
        for name, one in self.alive.items():
            spec = one.spec
            phase = Phase.READY if self.now - one.at >= START_SECONDS else Phase.STARTING
            if spec.kind == ENGINE:
                room -= 1
                if room < 0:
                    phase, one.at = Phase.PENDING, self.now
            url = "" if phase is Phase.PENDING else f"http://{name}:1"
            node = spec.node or "n1"
            found.append(
                Placed(
                    name=name,
                    kind=spec.kind,
                    pool=spec.pool,
                    digest=spec.digest,
                    phase=phase,
                    url=url,
                    node=node,
                )
            )
        return found

    async def nodes(self) -> list[str]:
        return self.ids

    async def start(self, spec: ProcessSpec) -> None:
        assert spec.name not in self.alive and spec.name not in self.stopped
        self.alive[spec.name] = Running(spec, self.now, spec.files.get("gateway.toml", ""))

    async def write(self, name: str, files: dict[str, str]) -> bool:
        self.alive[name].file = files["gateway.toml"]
        return True

    async def stop(self, name: str, seconds: float) -> None:
        del self.alive[name]
        self.stopped.append(name)

    # -- servers -------------------------------------------------------------------------------

    def server(self, url: str, key: str) -> Server:
        machines = self

        class Fake(Server):
            async def get(self, path: str) -> bytes | None:
                return machines.get(url[7:-2], path, key)

            async def post(self, path: str, body: Any) -> bytes | None:
                one = machines.alive.get(url[7:-2])
                if one is None or one.silent:
                    return None
                one.leaving = path == "/admin/engines/drain"
                return b"{}"

        return Fake(url, key)

    def get(self, name: str, path: str, key: str) -> bytes | None:
        one = self.alive.get(name)
        if one is None or one.silent:
            return None
        assert key == ("e" if one.spec.kind == ENGINE else "c")
        said: Any = {
            "/load": {"server_load": one.running, "models": {"m": {"wait": one.wait, "slots": 4}}},
            "/admin/engines": {"engines": [{"requests": one.running, "leaving": one.leaving}]},
            "/admin/targets": {
                "targets": [{"name": n, "given": g} for n, g in one.given.items()],
                "held": {"m": {"requests": one.held, "prompt_tokens": 10 * one.held}},
            },
        }[path]
        return msgspec.json.encode(said)

    # -- what tests look at --------------------------------------------------------------------

    def of(self, kind: str) -> list[Running]:
        return [one for one in self.alive.values() if one.spec.kind == kind]

    @property
    def engines(self) -> list[Running]:
        return self.of(ENGINE)

    @property
    def told(self) -> list[list[str]]:
        """The targets of each gateway."""
        return [
            [one["name"] for one in tomllib.loads(gateway.file)["targets"]]
            for gateway in self.of(GATEWAY)
        ]


MODEL = {"name": "m", "min": 0, "max": 4, "idle": 20, "stabilization": 10, "cooldown": 1}


def _controller(machines: Machines, model: dict[str, Any], **more: Any) -> Controller:
    config = checked({"models": [{**MODEL, **model}], **more})
    made = deployment(config, {"TIDEMILL_API_KEY": "c"}, "e")
    return Controller(made, machines, lambda: machines.now, machines.server)


async def _steps(controller: Controller, machines: Machines, seconds: float) -> None:
    for _ in range(round(seconds)):
        await controller.step()
        await asyncio.sleep(0)  # stops are tasks
        machines.now += 1.0


async def test_from_zero_on_a_held_request_and_back() -> None:
    machines = Machines()
    controller = _controller(machines, {}, gateway={"count": 2})
    await _steps(controller, machines, 8)
    assert len(machines.of(GATEWAY)) == 2 and not machines.engines and machines.told == [[], []]
    machines.of(GATEWAY)[0].held = 3
    await _steps(controller, machines, 2)
    [engine] = machines.engines
    assert engine.spec.arguments[:4] == ("serve", "m", "--served-name", "m")
    assert engine.spec.env["TIDEMILL_API_KEY"] == "e"
    assert machines.told == [[], []]  # it starts
    await _steps(controller, machines, 4)
    assert machines.told == [[engine.spec.name]] * 2
    machines.of(GATEWAY)[0].held, engine.running = 0, 3
    await _steps(controller, machines, 40)
    assert machines.engines == [engine]
    engine.running = 0
    await _steps(controller, machines, 19)
    assert machines.engines == [engine]
    await _steps(controller, machines, 5)
    assert machines.stopped == [engine.spec.name] and machines.told == [[], []]


async def test_more_under_load_and_fewer_after_it() -> None:
    machines = Machines()
    controller = _controller(machines, {"min": 1})
    await _steps(controller, machines, 6)
    machines.engines[0].running = 4
    machines.engines[0].wait = 9.0
    await _steps(controller, machines, 8)
    assert len(machines.engines) == 4 and len(machines.told[0]) == 4
    for one in machines.engines:
        one.running, one.wait = 1, 0.0
    await _steps(controller, machines, 13)
    leaving = [one for one in machines.engines if one.leaving]
    assert len(machines.engines) == 4 and len(leaving) == 2  # 4 of 4 slots, at 0.8
    assert len(machines.told[0]) == 2  # gateways give those nothing more
    leaving[0].running = 0
    await _steps(controller, machines, 2)
    assert machines.stopped == [leaving[0].spec.name]
    for one in machines.engines:
        if not one.leaving:
            one.wait = 3.0  # three are needed again: the one that drains stays
    await _steps(controller, machines, 2)
    assert not leaving[1].leaving and len(machines.told[0]) == 3 == len(machines.engines)


async def test_a_drain_ends_though_its_requests_do_not() -> None:
    machines = Machines()
    controller = _controller(machines, {"min": 2, "drain": 15})
    await _steps(controller, machines, 6)
    for one in machines.engines:
        one.running = 1
    controller = _controller(machines, {"min": 1, "max": 1, "drain": 15})
    await _steps(controller, machines, 14)
    assert len(machines.engines) == 2
    await _steps(controller, machines, 4)
    assert len(machines.engines) == 1


async def test_what_is_lost_is_replaced() -> None:
    machines = Machines()
    controller = _controller(machines, {"min": 2})
    await _steps(controller, machines, 6)
    dead, silent = machines.engines
    del machines.alive[dead.spec.name]  # with its node
    await _steps(controller, machines, 6)
    assert len(machines.engines) == 2 and len(machines.told[0]) == 2
    silent.silent = True
    await _steps(controller, machines, 40)
    assert silent.spec.name in machines.stopped and len(machines.told[0]) == 2
    gateway = machines.of(GATEWAY)[0]
    del machines.alive[gateway.spec.name]
    await _steps(controller, machines, 6)
    assert len(machines.told) == 1 and len(machines.told[0]) == 2


async def test_another_controller_goes_on_where_one_ended() -> None:
    machines = Machines()
    await _steps(_controller(machines, {"min": 3}), machines, 6)
    machines.engines[2].leaving = True
    machines.engines[2].running = 1
    before, names = machines.told, set(machines.alive)
    await _steps(_controller(machines, {"min": 2, "stabilization": 100}), machines, 10)
    assert set(machines.alive) == names  # also the one that drains, until it is free
    assert machines.told == [before[0][:2]]
    machines.engines[2].running = 0
    await _steps(_controller(machines, {"min": 2, "stabilization": 100}), machines, 3)
    assert len(machines.engines) == 2


async def test_another_file_replaces_engines_without_a_gap() -> None:
    machines = Machines()
    await _steps(_controller(machines, {"min": 2}), machines, 6)
    old = {one.spec.name for one in machines.engines}
    controller = _controller(machines, {"min": 2, "args": ["--max-num-seqs", "2"]})
    for _ in range(40):
        await _steps(controller, machines, 1)
        assert all(len(told) >= 2 for told in machines.told)
    assert old <= set(machines.stopped) and len(machines.engines) == 2
    controller = _controller(machines, {"name": "other", "min": 1})
    await _steps(controller, machines, 8)
    assert [one.spec.pool for one in machines.engines] == ["other"]


async def test_no_room_is_waited_for() -> None:
    machines = Machines(room=1)
    controller = _controller(machines, {"min": 2, "start": 10})
    await _steps(controller, machines, 60)
    assert len(machines.engines) == 2 and not machines.stopped
    phases = [one["phase"] for one in controller.status()["processes"] if one["kind"] == ENGINE]
    assert sorted(phases) == ["pending", "ready"]
    machines.room = 2
    await _steps(controller, machines, 5)
    assert len(machines.told[0]) == 2


async def test_a_gateway_on_every_node() -> None:
    machines = Machines()
    controller = _controller(machines, {}, gateway={"per_node": True})
    await _steps(controller, machines, 5)
    assert sorted(one.spec.node or "" for one in machines.of(GATEWAY)) == ["n1", "n2"]
    machines.ids = ["n2", "n3"]
    await _steps(controller, machines, 5)
    assert sorted(one.spec.node or "" for one in machines.of(GATEWAY)) == ["n2", "n3"]


async def test_gateways_of_another_file_are_replaced_one_after_the_other() -> None:
    machines = Machines()
    await _steps(_controller(machines, {}, gateway={"count": 2}), machines, 5)
    old = [one.spec.name for one in machines.of(GATEWAY)]
    controller = _controller(machines, {}, gateway={"count": 2, "args": ["--log-level", "debug"]})
    for _ in range(20):
        await _steps(controller, machines, 1)
        ready = [p for p in await machines.processes() if p.phase is Phase.READY]
        assert ready
    assert set(old) <= set(machines.stopped) and len(machines.of(GATEWAY)) == 2


async def test_requests_between_two_looks_count() -> None:
    machines = Machines()
    controller = _controller(machines, {"idle": 5})
    await _steps(controller, machines, 5)
    machines.of(GATEWAY)[0].held = 1
    await _steps(controller, machines, 6)
    gateway, name = machines.of(GATEWAY)[0], machines.engines[0].spec.name
    gateway.held = 0
    for number in range(20):
        gateway.given[name] = number // 2
        await _steps(controller, machines, 1)
    assert len(machines.engines) == 1
    await _steps(controller, machines, 10)
    assert not machines.engines


async def test_what_fails_in_a_step_is_no_end() -> None:
    machines = Machines()
    controller = _controller(machines, {"min": 1})
    assert not controller.looked.is_set()
    await _steps(controller, machines, 6)
    assert controller.looked.is_set()
    status = controller.status()
    assert status["pools"]["m"]["desired"] == 1
    [engine] = [one for one in status["processes"] if one["kind"] == ENGINE]
    assert (engine["phase"], engine["running"]) == ("ready", 0)
    machines.get = lambda *_: b"no JSON"  # type: ignore[method-assign]
    await _steps(controller, machines, 3)
    assert len(machines.engines) == 1 and replace(machines.engines[0]).spec.pool == "m"
