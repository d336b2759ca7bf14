"""Models are loaded on demand, kept while they are used, and evicted for others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from helpers.fake_loader import FakeLoaded, FakeLoader
from helpers.live_server import fake_context, make_model
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.server.context import ServerContext
from tidemill.server.errors import Rejection, problem_of
from tidemill.server.host.host import ModelHost
from tidemill.server.host.slot import Hosted, State
from tidemill.server.host.switching import Need

NEED = Need(fixed=10, kv_least=2, kv_most=20)


def _loader(context: ServerContext, name: str, **changes: object) -> FakeLoader:
    engine = ScriptedEngine(info=fake_info(model=name))
    return FakeLoader(make_model(context, engine), needs=NEED, **changes)  # type: ignore[arg-type]


def _host(names: str, budget: int | None) -> tuple[ModelHost, dict[str, FakeLoader]]:
    context = fake_context(ScriptedEngine())
    host = ModelHost(budget=budget)
    loaders = {name: _loader(context, name) for name in names}
    for name, loader in loaders.items():
        host.add(Hosted(name), loader)
    return host, loaders


def _run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


async def _use(host: ModelHost, name: str, seconds: float = 0.0) -> str:
    async with host.lease(name) as model:
        await asyncio.sleep(seconds)
        return model.name


def test_a_request_loads_its_model_once_and_both_of_its_names_mean_it() -> None:
    async def main() -> None:
        context = fake_context(ScriptedEngine())
        host, loader = ModelHost(), _loader(context, "a", seconds=0.05)
        host.add(Hosted("a", ("b",)), loader)
        assert host.find("b") is host.find(None) and host.models == []
        used = await asyncio.gather(*(_use(host, n) for n in ("a", "b", "a")))
        assert used == ["a"] * 3 and len(loader.loads) == 1
        with pytest.raises(Rejection) as unknown:
            await _use(host, "c")
        assert unknown.value.problem.status == 404 and "'a', 'b'" in unknown.value.problem.message
        await host.close()
        assert loader.loads[0].closed

    _run(main)


def test_an_alias_that_is_a_pattern_means_what_it_matches_and_is_not_listed() -> None:
    context = fake_context(ScriptedEngine())
    host = ModelHost()
    for name, aliases in (("a", ("claude-*",)), ("b", ("claude-haiku-*", "claude-x"))):
        host.add(Hosted(name, aliases), _loader(context, name))
    names = ("claude-opus-4-8[1m]", "claude-haiku-4-5", "claude-x", "claude-*")
    assert [host.find(name).name for name in names] == ["a", "b", "b", "a"]
    assert host.names == ("a", "b", "claude-x")
    with pytest.raises(Rejection):
        host.find("Claude-opus")
    for wrong in (Hosted("c", ("claude-*",)), Hosted("c*")):
        with pytest.raises(TidemillError):
            host.add(wrong, _loader(context, "c"))


def test_three_models_take_turns_in_the_memory_of_two() -> None:
    async def main() -> None:
        host, loaders = _host("abc", budget=24)
        most = 0
        order = [name for _ in range(70) for name in "abc"]

        async def one(name: str) -> str:
            nonlocal most
            async with host.lease(name) as model:
                loaded = [s for s in host.slots if s.state is not State.UNLOADED]
                most = max(most, len(loaded))
                await asyncio.sleep(0.005)
                return model.name

        assert await asyncio.gather(*map(one, order)) == order
        assert most <= 2
        # In batches: far fewer switches than requests.
        assert sum(len(loader.loads) for loader in loaders.values()) < 10
        await host.close()

    _run(main)


def test_caches_share_the_memory_of_what_is_loaded() -> None:
    async def main() -> None:
        host, loaders = _host("ab", budget=44)
        await _use(host, "a")
        assert loaders["a"].loads[0].kv_bytes == 20
        await _use(host, "b")
        assert loaders["a"].loads[0].kv_bytes == 12 == loaders["b"].loads[0].kv_bytes
        await host.unload(host.find("a"))
        assert loaders["b"].loads[0].kv_bytes == 20
        await host.close()

    _run(main)


def test_a_model_that_can_never_fit_is_a_503_with_the_numbers() -> None:
    async def main() -> None:
        host, _ = _host("a", budget=11)
        with pytest.raises(Rejection) as refused:
            await _use(host, "a")
        problem = refused.value.problem
        assert problem.status == 503 and "--memory" in problem.message
        assert problem.type == "server_error"

    _run(main)


def test_a_wrong_configuration_is_no_fault_of_a_request_but_said_to_operators_as_it_is() -> None:
    async def main() -> None:
        host, loaders = _host("a", budget=None)
        loaders["a"].error = config_error("max_model_len", "exceeds the positions")
        with pytest.raises(TidemillError, match=r"'a' cannot be loaded until .*exceeds") as caught:
            await _use(host, "a")
        assert problem_of(caught.value, "").status == 500
        with pytest.raises(TidemillError) as caught:
            await host.load(host.find("a"))
        assert caught.value is loaders["a"].error
        await host.close()

    _run(main)


def test_a_load_that_fails_is_said_at_once_for_a_while_and_tried_again_later() -> None:
    async def main() -> None:
        now = [100.0]
        context = fake_context(ScriptedEngine())
        host = ModelHost(clock=lambda: now[0])
        loader = _loader(context, "a", error=TidemillError(ErrorKind.MODEL_FILE, "it is cut short"))
        slot = host.add(Hosted("a"), loader)
        for _ in range(2):
            with pytest.raises(TidemillError, match="cut short"):
                await _use(host, "a")
        loader.error = None
        with pytest.raises(TidemillError, match="cut short"):
            await _use(host, "a")
        now[0] += 6.0
        assert await _use(host, "a") == "a" and slot.error is None
        await host.close()

    _run(main)


def test_an_engine_that_ends_while_it_loads_is_started_again() -> None:
    async def main() -> None:
        host, loaders = _host("a", budget=None)
        loader, tried = loaders["a"], 0
        load = loader.load

        async def dies(*args: object) -> FakeLoaded:
            nonlocal tried
            tried += 1
            if tried < 3:
                raise TidemillError(ErrorKind.UNAVAILABLE, "the engine was killed")
            return await load(*args)  # type: ignore[arg-type]

        loader.load = dies  # type: ignore[method-assign, assignment]
        assert await _use(host, "a") == "a" and tried == 3
        await host.unload(host.find("a"))
        tried = -1
        with pytest.raises(TidemillError, match="killed"):
            await _use(host, "a")
        await host.close()

    _run(main)


def test_a_waiting_request_that_leaves_holds_nothing() -> None:
    async def main() -> None:
        host, loaders = _host("a", budget=None)
        loaders["a"].seconds = 0.05
        tasks = [asyncio.create_task(_use(host, "a", 9.0)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.1)
        slot = host.find("a")
        assert slot.leases == 0 and not slot.waiters
        assert await _use(host, "a") == "a"
        await host.close()

    _run(main)


def test_what_is_not_used_is_unloaded_after_its_time() -> None:
    async def main() -> None:
        host, loaders = _host("ab", budget=None)
        async with host.lease("a", keep_alive=0.05):
            await asyncio.sleep(0.1)
            assert host.find("a").state is State.LOADED
        await _use(host, "b")
        await asyncio.sleep(0.3)
        assert loaders["a"].loads[0].closed and not loaders["b"].loads[0].closed
        assert host.find("a").state is State.UNLOADED
        assert await _use(host, "a") == "a"
        await host.close()

    _run(main)


def test_an_operators_unload_waits_for_the_requests() -> None:
    async def main() -> None:
        host, loaders = _host("a", budget=None)
        running = asyncio.create_task(_use(host, "a", 0.1))
        await asyncio.sleep(0.02)
        leaving = asyncio.create_task(host.unload(host.find("a")))
        await asyncio.sleep(0.02)
        assert not loaders["a"].loads[0].closed
        again = asyncio.create_task(_use(host, "a"))
        await leaving
        assert running.done() and await again == "a" and len(loaders["a"].loads) == 2
        await host.close()

    _run(main)


def test_sleep_gives_memory_back_and_the_next_request_wakes() -> None:
    async def main() -> None:
        host, loaders = _host("a", budget=None)
        await _use(host, "a")
        async with host.lease("a"):
            assert not await host.sleep(host.find("a")), "it is used"
        assert await host.sleep(host.find("a"))
        loaded = loaders["a"].loads[0]
        assert loaded.asleep and host.find("a").state is State.ASLEEP
        assert await _use(host, "a") == "a" and not loaded.asleep and len(loaders["a"].loads) == 1
        await host.close()

    _run(main)


def test_an_engine_that_cannot_be_restarted_is_loaded_again_by_a_later_request() -> None:
    async def main() -> None:
        now = [100.0]
        context = fake_context(ScriptedEngine())
        host, loader = ModelHost(clock=lambda: now[0]), _loader(context, "a")
        host.add(Hosted("a"), loader)
        await _use(host, "a")
        ending = asyncio.create_task(host.ended())
        await asyncio.sleep(0)
        loader.loads[0].end("it died five times")
        await asyncio.sleep(0.05)
        assert ending.done() and await ending == "it died five times"
        with pytest.raises(TidemillError, match="five times"):
            await _use(host, "a")
        now[0] += 6.0
        assert await _use(host, "a") == "a" and len(loader.loads) == 2
        await host.close()

    _run(main)


def test_while_it_shuts_down_nothing_is_loaded() -> None:
    async def main() -> None:
        host, loaders = _host("ab", budget=None)
        await _use(host, "a")
        loaders["b"].seconds = 5.0
        waiting = asyncio.create_task(_use(host, "b"))
        await asyncio.sleep(0.02)
        host.drain("shutting down")
        with pytest.raises(Rejection) as refused:
            await waiting
        assert refused.value.problem.status == 503
        await host.close()
        assert loaders["a"].loads[0].closed

    _run(main)
