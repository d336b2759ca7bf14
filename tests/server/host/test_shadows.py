"""Copies for a shadow version run where they delay nothing, and are dropped else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from helpers.fake_loader import FakeLoader
from helpers.live_server import add_model, fake_context, make_model
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.contract.sampling import SamplingParams
from tidemill.generation.request import GenerateRequest
from tidemill.server.context import ServerContext
from tidemill.server.host.begin import begin_generation
from tidemill.server.host.rollout.traffic import Shadow
from tidemill.server.host.shadows import LOWEST_PRIORITY
from tidemill.server.host.slot import Hosted, Slot
from tidemill.server.host.switching import Need

ASKED = GenerateRequest(prompts=("hello",), sampling=SamplingParams(max_tokens=6))


def _engine(name: str, step_seconds: float = 0.0) -> ScriptedEngine:
    return ScriptedEngine(info=fake_info(model=name), step_seconds=step_seconds)


class _Server:
    """chat@1 answers, chat@2 gets copies of everything."""

    def __init__(
        self, *, step_seconds: float = 0.0, while_busy: bool = False, loaded: bool = True
    ) -> None:
        self.context: ServerContext = fake_context(_engine("chat@1"))
        self.shadow = _engine("chat@2", step_seconds)
        self.slot: Slot | None = None
        if loaded:
            add_model(self.context, self.shadow)
        else:
            loader = FakeLoader(make_model(self.context, self.shadow), needs=Need(10, 2, 20))
            self.slot = self.context.host.add(Hosted("chat@2"), loader)
        rule = Shadow(version="1", shadow="2", fraction=1.0, while_busy=while_busy)
        self.context.versions().declare("chat", ("1", "2"), rule=rule)

    async def ask(self, name: str = "chat") -> None:
        async with self.context.host.lease(name) as model:
            generation = await begin_generation(
                model, "x", ASKED, max_answer_bytes=2**30, streamed=True
            )
            async for _ in generation.steps():
                pass

    def outcomes(self) -> dict[str, float]:
        copies = self.context.versions().metrics.copies
        return {
            sample.labels["outcome"]: sample.value
            for metric in copies.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    async def until(self, outcome: str, count: int = 1) -> None:
        while self.outcomes().get(outcome, 0) < count:
            await asyncio.sleep(0.002)


def _run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def test_a_copy_runs_after_its_request_with_the_lowest_priority_and_is_compared() -> None:
    async def main() -> None:
        server = _Server()
        for count in range(3):
            await server.ask()
            await server.until("answered", count + 1)
        request = server.shadow.requests[0]
        assert request.priority == LOWEST_PRIORITY and request.tenant == "shadow"
        traffic = server.context.versions().find("chat")
        assert traffic is not None and traffic.experiment is not None
        assert {v: a.requests for v, a in traffic.experiment.arms().items()} == {"1": 3, "2": 3}
        # They count in no metric of requests.
        text, _ = server.context.metrics.render()
        assert b'tidemill_requests_total{model="chat@2"' not in text
        await server.context.host.close()

    _run(main)


def test_a_request_to_any_model_ends_the_copy_that_runs() -> None:
    async def main() -> None:
        server = _Server(step_seconds=0.5)
        add_model(server.context, _engine("other"))
        await server.ask()
        await asyncio.sleep(0.02)
        assert server.shadow.requests
        await server.ask("other")
        await server.until("interrupted")
        assert server.shadow.cancelled
        await server.context.host.close()

    _run(main)


def test_copies_beside_requests_go_on_and_too_many_are_dropped() -> None:
    async def main() -> None:
        server = _Server(step_seconds=0.05, while_busy=True)
        await asyncio.gather(*(server.ask() for _ in range(7)))
        await server.until("full", 3)
        await server.ask("chat@1")
        await server.until("answered", 4)
        assert "interrupted" not in server.outcomes()
        await server.context.host.close()

    _run(main)


def test_a_shadow_is_loaded_where_it_fits_beside_and_nothing_is_evicted_for_it() -> None:
    async def main() -> None:
        for budget, outcome in ((24, "answered"), (20, "memory")):
            server = _Server(loaded=False)
            host = server.context.host
            host.budget, host.slots[0].need = budget, Need(10, 2, 20)
            await server.ask()
            await server.until(outcome)
            assert host.slots[0].loaded is not None
            await host.close()

    _run(main)


def test_a_server_that_drains_makes_no_copies() -> None:
    async def main() -> None:
        server = _Server(step_seconds=0.5)
        await server.ask()
        await asyncio.sleep(0.02)
        server.context.host.drain("bye")
        await server.until("interrupted")
        async with asyncio.timeout(5):
            await server.context.host.idle()
        await server.context.host.close()

    _run(main)
