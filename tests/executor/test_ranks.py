"""Models in several processes: the same answers, and what happens when one ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

import tidemill
from tidemill import LLM, SamplingParams
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput, EngineRequest
from tidemill.engine.supervisor import Recovery, SupervisedEngine, Supervision
from tidemill.executor.ranks.cpus import cpus_of, threads_of

PROMPT = tuple(range(3, 60))


BROOK = str(Path(tidemill.__file__).parent / "assets" / "brook")


def _answers(llm: LLM) -> list[object]:
    """What several requests at once get, with logprobs, forks and a prefix that is cached."""
    prompts = [list(PROMPT), list(PROMPT[:40]), [5, 6, 7]]
    params = SamplingParams(
        n=2, temperature=0.9, seed=11, max_tokens=24, logprobs=2, ignore_eos=True
    )
    found: list[object] = []
    for _ in range(2):
        for output in llm.generate(prompts, params):
            found += [(choice.token_ids, choice.logprobs) for choice in output.outputs]
    return found


def _rank_processes(parent: int) -> list[psutil.Process]:
    children = psutil.Process(parent).children()
    return [c for c in children if "tidemill.executor.ranks.process" in c.cmdline()]


TENSOR = {"tensor_parallel": 2}
PIPELINE = {"pipeline_parallel": 2}


@pytest.mark.parametrize("parallel", [TENSOR, PIPELINE], ids=["tensor", "pipeline"])
def test_two_processes_answer_as_one_and_end_with_it(parallel: dict[str, int]) -> None:
    settings = {"kv_memory": 8 * 2**20, "max_num_seqs": 16, "max_step_tokens": 32}
    with LLM(BROOK, threads=1, **settings) as llm:
        want = _answers(llm)
    with LLM(BROOK, threads=2, **parallel, **settings) as llm:
        [rank] = _rank_processes(os.getpid())
        assert _answers(llm) == want
        rank.kill()
        rank.wait(10)
        with pytest.raises(TidemillError, match="process") as error:
            _answers(llm)
        assert error.value.kind is ErrorKind.UNAVAILABLE
    assert not _rank_processes(os.getpid())


class Watched:
    """A supervised engine of two ranks, and its recoveries."""

    def __init__(self, engine: SupervisedEngine, seen: list[Recovery]) -> None:
        self.engine, self.seen = engine, seen


@pytest.fixture
async def watched(request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    seen: list[Recovery] = []
    config = EngineConfig(
        model=BROOK, served_name="tiny", kv_memory=8 * 2**20, threads=2, **request.param
    )
    supervision = Supervision(on_recovery=seen.append, stall_timeout=2.0)
    engine = await SupervisedEngine.open(config, log_level="error", supervision=supervision)
    yield Watched(engine, seen)
    await engine.close()


async def _tokens(stream: AsyncIterator[ChoiceOutput], told: asyncio.Event) -> list[int]:
    tokens: list[int] = []
    async for output in stream:
        tokens += output.token_ids
        if len(tokens) > 20:
            told.set()
    return tokens


@pytest.mark.parametrize(
    ("watched", "number"),
    [(TENSOR, signal.SIGKILL), (PIPELINE, signal.SIGKILL), (PIPELINE, signal.SIGSTOP)],
    indirect=["watched"],
)
async def test_a_stream_goes_on_when_a_rank_dies_or_stops(
    watched: Watched, number: signal.Signals
) -> None:
    def request(name: str) -> EngineRequest:
        sampling = SamplingParams(temperature=0.9, seed=5, max_tokens=1800, ignore_eos=True)
        return EngineRequest(
            request_id=name, prompt_token_ids=PROMPT, sampling=sampling, cache_salt=name
        )

    engine = watched.engine
    want = await _tokens(engine.submit(request("calm")), asyncio.Event())
    told = asyncio.Event()
    running = asyncio.ensure_future(_tokens(engine.submit(request("storm")), told))
    await told.wait()
    [rank] = _rank_processes(engine.pid)
    rank.send_signal(number)
    async with asyncio.timeout(60):
        assert await running == want
        while not watched.seen:
            await asyncio.sleep(0.01)
    assert any(recovery.replayed for recovery in watched.seen)  # a busy machine may stall one more
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("settings", "param", "why"),
    [
        ({"kv_ram": 2**20}, "kv_ram", "whole KV blocks"),
        ({"speculate": "skip"}, "speculate", "off or lookup"),
        ({"backend": "torch"}, "backend", "native backend"),
        ({"tensor_parallel": 65}, "tensor_parallel", "between 1 and 64"),
        ({"pipeline_parallel": 2}, "pipeline_parallel", "do not go together"),
        (PIPELINE | {"tensor_parallel": 1, "kv_disk": "x"}, "kv_disk", "which pipeline_parallel"),
        ({"tensor_parallel": 1, "pipeline_peers": "here"}, "pipeline_peers", "HOST:PORT"),
        (
            {"tensor_parallel": 1, "pipeline_parallel": 2, "pipeline_peers": "a:1,b:1"},
            "pipeline_parallel",
            "make 3 stages",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    settings: dict[str, object], param: str, why: str
) -> None:
    config = EngineConfig(
        **{"model": "m", "served_name": "m", "tensor_parallel": 2, **settings}  # type: ignore[arg-type]
    )
    with pytest.raises(TidemillError, match=why) as error:
        config.validate()
    assert error.value.param == param


def test_a_model_that_cannot_be_split_is_refused_at_start() -> None:
    with pytest.raises(TidemillError, match="too small for 17 processes") as error:
        LLM(BROOK, tensor_parallel=17, kv_memory=2**27)
    assert error.value.param == "tensor_parallel"
    with pytest.raises(TidemillError, match="layers make at most") as error:
        LLM(BROOK, pipeline_parallel=17, kv_memory=2**27)
    assert error.value.param == "pipeline_parallel"
    assert not _rank_processes(os.getpid())


def test_threads_and_processors_are_shared_out() -> None:
    assert [threads_of(7, rank, 3) for rank in range(3)] == [3, 2, 2]
    assert [threads_of(1, rank, 2) for rank in range(2)] == [1, 1]
    assert [cpus_of([0, 1, 4, 5, 6], rank, 2) for rank in range(2)] == [[0, 1], [4, 5, 6]]
    assert cpus_of([3], 1, 2) == [3]
