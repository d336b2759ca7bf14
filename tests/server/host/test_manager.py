"""Models of a running server change without touching those that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from helpers.fake_source import FakeSource, managed, option
from helpers.live_server import fake_context
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import TidemillError
from tidemill.server.context import ServerContext
from tidemill.server.errors import Rejection
from tidemill.server.host import manager
from tidemill.server.host.engine_loader import TextSide
from tidemill.server.host.host import ModelHost
from tidemill.server.host.manager import ModelManager
from tidemill.server.host.slot import State
from tidemill.server.host.source import ModelChanges, Reload


def _run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def _reload(*order: str, memory: int | None = None, **changes: Any) -> Reload:
    return Reload(ModelChanges(**changes), order, memory, 10.0, {}, lambda: None)


class Server:
    """A host with its manager, and the loaders that it made."""

    def __init__(self, names: Iterable[str]) -> None:
        self.context: ServerContext = fake_context(ScriptedEngine())
        self.first = self.context.host.default.name
        self.source = FakeSource(ModelChanges(added=tuple(map(option, names))))
        self.loaders = managed(self.context, self.source)
        assert self.context.manager is not None
        self.manager: ModelManager = self.context.manager
        self.host: ModelHost = self.context.host
        self.host.look()

    async def reload(self, *order: str, **changes: Any) -> None:
        self.source.reloads = _reload(self.first, *order, **changes)
        await self.manager.reload()


async def _use(host: ModelHost, name: str, until: asyncio.Event | None = None) -> Any:
    async with host.lease(name) as model:
        if until is not None:
            await until.wait()
        return model


def test_a_replaced_model_answers_what_it_began_and_then_its_successor_answers() -> None:
    async def main() -> None:
        server, ended = Server("ab"), asyncio.Event()
        before = server.loaders["a"]
        running = asyncio.create_task(_use(server.host, "a", ended))
        untouched = asyncio.create_task(_use(server.host, "b", ended))
        await asyncio.sleep(0.05)
        await server.reload("a", "b", replaced=(option("a"),))
        waiting = asyncio.create_task(_use(server.host, "a"))
        await asyncio.sleep(0.05)
        assert not before.loads[0].closed and not waiting.done()
        assert await _use(server.host, "b"), "a model that did not change goes on"
        ended.set()
        await asyncio.gather(running, untouched, waiting)
        assert before.loads[0].closed and len(server.loaders["a"].loads) == 1
        assert server.loaders["a"] is not before and len(server.loaders["b"].loads) == 1
        await server.host.close()

    _run(main)


def test_a_removed_model_ends_what_it_began_and_its_name_is_free() -> None:
    async def main() -> None:
        server, ended = Server("a"), asyncio.Event()
        before = server.loaders["a"]
        running = asyncio.create_task(_use(server.host, "a", ended))
        await asyncio.sleep(0.05)
        await server.reload(removed=("a",))
        with pytest.raises(Rejection, match="does not exist"):
            await _use(server.host, "a")
        await server.reload("a", added=(option("a"),))
        assert await _use(server.host, "a"), "beside the old one, which still answers"
        assert not before.loads[0].closed
        ended.set()
        await running
        while not before.loads[0].closed:
            await asyncio.sleep(0.01)
        assert len(server.host.slots) == 2 and server.host.find("a").state is State.LOADED
        await server.host.remove("a")
        assert server.loaders["a"].loads[0].closed
        await server.host.close()

    _run(main)


def test_names_and_stay_change_in_place_and_an_alias_may_move() -> None:
    async def main() -> None:
        server = Server("ab")
        loader = server.loaders["a"]
        await server.reload("a", "b", updated=(option("a", aliases=("x",)),))
        loaded = await _use(server.host, "x")
        moved = (option("b", aliases=("x",)), option("a", keep_alive=5.0))
        await server.reload("b", "a", updated=moved)
        assert server.host.find("x").name == "b" and server.host.find("a").expires_after == 5.0
        assert await _use(server.host, "a") is not None and loaded is not None
        assert len(loader.loads) == 1 and not loader.loads[0].closed
        assert [slot.name for slot in server.host.slots] == [server.first, "b", "a"]
        await server.host.close()

    _run(main)


def test_a_text_side_is_opened_anew_and_the_engine_goes_on() -> None:
    async def main() -> None:
        server = Server("a")
        before = await _use(server.host, "a")
        texts: list[TextSide] = []

        async def text() -> TextSide:
            texts.append(TextSide(before.tokenizer, before.template, before.chat, {"top_p": 0.5}))
            return texts[-1]

        make = server.manager.loader

        def with_text(chosen: Any) -> Any:
            loader = make(chosen)
            loader.text = text  # type: ignore[method-assign]
            return loader

        server.manager.loader = with_text
        await server.reload("a", updated=(option("a"),), texts=frozenset("a"))
        after = await _use(server.host, "a")
        assert after.defaults == {"top_p": 0.5} and before.defaults == {}
        assert after.client is before.client and len(texts) == 1
        await server.host.close()

    _run(main)


def test_a_reload_that_fails_changes_nothing() -> None:
    async def main() -> None:
        server = Server("a")
        await _use(server.host, "a")

        async def broken() -> TextSide:
            raise TidemillError("config", "no such template")  # type: ignore[arg-type]

        make = server.manager.loader

        def with_text(chosen: Any) -> Any:
            loader = make(chosen)
            loader.text = broken  # type: ignore[method-assign]
            return loader

        server.manager.loader = with_text
        changes = {"added": (option("c"),), "updated": (option("a", aliases=("x",)),)}
        with pytest.raises(TidemillError, match="no such template"):
            await server.reload("a", "c", texts=frozenset("a"), **changes)
        assert server.host.names == (server.first, "a")
        await server.host.close()

    _run(main)


def test_a_model_that_is_replaced_in_the_library_is_noticed_by_its_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        server, now = Server("ab"), [0.0]
        monkeypatch.setattr(manager, "monotonic", lambda: now[0])
        server.host.look()
        before = server.loaders["a"]
        await _use(server.host, "a")
        server.source.looked = ModelChanges(replaced=(option("a"),), removed=("b",))
        now[0] = 0.9
        await _use(server.host, "a")
        assert server.loaders["a"] is before, "at most once a second"
        now[0] = 1.0
        await _use(server.host, "a")
        assert before.loads[0].closed and len(server.loaders["a"].loads) == 1
        with pytest.raises(Rejection, match="does not exist"):
            await _use(server.host, "b")
        await server.host.close()

    _run(main)


def test_a_name_of_the_library_that_is_taken_is_said_and_the_others_are_served() -> None:
    async def main() -> None:
        server = Server("a")
        server.source.looked = ModelChanges(added=(option("b", aliases=("a",)), option("c")))
        server.host.look()
        assert server.host.names == (server.first, "a", "c")
        await server.host.close()

    _run(main)


def test_a_second_model_brings_a_budget_and_a_new_one_is_shared_at_once() -> None:
    async def main() -> None:
        server = Server("ab")
        assert server.host.budget == 1000, "one model took what it found; two share"
        await _use(server.host, "a")
        await server.reload("a", "b", memory=22)
        while server.loaders["a"].loads[0].kv_bytes != 12:
            await asyncio.sleep(0.01)
        await server.host.close()

    _run(main)


def test_while_a_model_goes_to_sleep_it_is_not_evicted() -> None:
    async def main() -> None:
        server = Server("ab")
        server.host.budget = 44
        await _use(server.host, "a")
        asleep = asyncio.create_task(server.host.sleep(server.host.find("a")))
        used = asyncio.create_task(_use(server.host, "b"))
        assert await asleep and await used
        assert server.host.find("a").state is State.ASLEEP
        assert not server.loaders["a"].loads[0].closed and await _use(server.host, "a")
        await server.host.close()

    _run(main)
