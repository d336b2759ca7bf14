"""Adapters in a running engine: loaded when they are needed, each answer by the right one."""

from __future__ import annotations

import asyncio
import queue
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from helpers.tiny_adapter import SHAPES, write_adapter
from helpers.tiny_folder import write_folder

from tidemill.base.errors import TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.history import Miss
from tidemill.contract.request import AdapterUse, EngineRequest
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import AdapterInfo, Controlled, Sleep, Wake
from tidemill.engine.core import make_core
from tidemill.engine.offline import InprocEngine
from tidemill.executor.inproc import open_inproc

COUNT = 12
PROMPTS = [[5, 9, 33, 17, 2 + i] for i in range(3)]


def random_adapter(folder: Path, seed: int, rank: int) -> Path:
    rng, prefix = np.random.default_rng(seed), "base_model.model."
    found: dict[str, np.ndarray] = {}
    for module, (out, width) in SHAPES.items():
        for part, shape in (("A", (rank, width)), ("B", (out, rank))):
            values = rng.standard_normal(shape).astype(np.float32)
            found[f"{prefix}{module}.lora_{part}.weight"] = values
    return write_adapter(folder, found, r=rank, lora_alpha=rank)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_folder(folder / "base")
    for i in range(COUNT):
        random_adapter(folder / f"a{i}", i, 1 + i)
    return folder


def config_of(folder: Path, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "dtype": "float32", "packed_cache": "off", "kv_memory": 2**20, "max_model_len": 128,
        "threads": 1, **changes,
    }  # fmt: skip
    return EngineConfig(model=str(folder / "base"), served_name="base", **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[InprocEngine]:
    engine = InprocEngine.open(config_of(folder))
    yield engine
    engine.close()


def use_of(engine: InprocEngine, folder: Path, i: int, **changes: object) -> AdapterUse:
    use = AdapterUse(f"a{i}", str(folder / f"a{i}"))
    info = engine.check_adapter(use)
    changes = {"digest": info.digest, "nbytes": info.nbytes, **changes}
    return msgspec.structs.replace(use, **changes)


def request(
    name: str, adapters: tuple[AdapterUse, ...], prompt: list[int], tokens: int = 12
) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(temperature=0.0, seed=0, max_tokens=tokens, ignore_eos=True),
        adapters=adapters,
    )


def answers(engine: InprocEngine, requests: list[EngineRequest]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {r.request_id: [] for r in requests}
    for output in engine.run(requests):
        assert output.error is None, output.error
        found[output.request_id] += output.token_ids
    return found


@pytest.fixture(scope="module")
def alone(engine: InprocEngine, folder: Path) -> dict[tuple[int, int], list[int]]:
    """(adapter or -1, prompt) -> the answer of a request that ran alone."""
    found = {}
    for i in range(-1, COUNT):
        adapters = () if i < 0 else (use_of(engine, folder, i),)
        for p, prompt in enumerate(PROMPTS):
            found[i, p] = answers(engine, [request("r", adapters, prompt)])["r"]
    assert len({tuple(a) for a in found.values()}) > 30, "the adapters do not differ"
    return found


def test_a_batch_of_all_is_as_each_alone(
    engine: InprocEngine, folder: Path, alone: dict[tuple[int, int], list[int]]
) -> None:
    uses = {i: (use_of(engine, folder, i),) for i in range(COUNT)} | {-1: ()}
    batch = [request(f"{i}/{p}", uses[i], PROMPTS[p]) for i, p in alone]
    assert answers(engine, batch) == {f"{i}/{p}": found for (i, p), found in alone.items()}


def test_a_small_budget_loads_and_unloads_and_mixes_nothing_up(
    folder: Path, alone: dict[tuple[int, int], list[int]]
) -> None:
    small = config_of(folder, adapter_memory=20_000)
    engine = InprocEngine.open(small)
    uses = {i: (use_of(engine, folder, i),) for i in range(COUNT)}
    assert sum(use.nbytes for [use] in uses.values()) > 3 * 20_000
    rng = random.Random(1)
    weights = [1 / (i + 1) for i in range(COUNT)]
    wanted = {}
    for n in range(60):
        [i], p = rng.choices(range(COUNT), weights), rng.randrange(len(PROMPTS))
        wanted[f"{n}"] = i, p
    batch = [request(name, uses[i], PROMPTS[p]) for name, (i, p) in wanted.items()]
    found = answers(engine, batch)
    for name, case in wanted.items():
        assert found[name] == alone[case], case
    engine.close()


def test_blocks_are_found_again_with_the_same_adapter_alone(
    engine: InprocEngine, folder: Path
) -> None:
    prompt = list(range(3, 60)) + [4] * 20
    use = use_of(engine, folder, 3)
    scaled = msgspec.structs.replace(use, scale=0.5)

    def cached(*adapters: AdapterUse) -> int:
        outputs = list(engine.run([request("r", adapters, prompt, 2)]))
        return next(o.cached_tokens for o in outputs if o.cached_tokens is not None)

    assert cached() == 0 and cached(use) == 0 and cached(scaled) == 0
    assert cached() > 60 and cached(use) > 60 and cached(scaled) > 60


def test_adapters_are_added_up_with_their_scales(folder: Path, tmp_path: Path) -> None:
    """Two adapters with scales compute what one of their summed matrices does."""
    from safetensors.numpy import load_file

    engine = InprocEngine.open(config_of(folder))
    one, two = use_of(engine, folder, 2, scale=0.5), use_of(engine, folder, 4, scale=-1.5)
    parts = [load_file(folder / f"a{i}" / "adapter_model.safetensors") for i in (2, 4)]
    joined = {}
    for name, first in parts[0].items():
        axis, scales = (0, (1, 1)) if "lora_A" in name else (1, (0.5, -1.5))
        both = [first * scales[0], parts[1][name] * scales[1]]
        joined[name] = np.concatenate(both, axis=axis).astype(np.float32)
    write_adapter(tmp_path / "sum", joined, r=8, lora_alpha=8)
    use = AdapterUse("sum", str(tmp_path / "sum"))
    use = msgspec.structs.replace(use, digest=engine.check_adapter(use).digest)
    batch = [request("added", (one, two), PROMPTS[0]), request("sum", (use,), PROMPTS[0])]
    found = answers(engine, batch)
    assert found["added"] == found["sum"]
    engine.close()


def test_changed_files_are_never_served_under_the_old_digest(
    engine: InprocEngine, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "a1", tmp_path / "mine")
    use = AdapterUse("mine", str(tmp_path / "mine"))
    use = msgspec.structs.replace(use, digest=engine.check_adapter(use).digest)
    before = answers(engine, [request("r", (use,), PROMPTS[0])])["r"]
    random_adapter(tmp_path / "mine", 99, 3)
    # It is in memory: requests that name the old one get the old one.
    assert answers(engine, [request("r", (use,), PROMPTS[0])])["r"] == before
    info = engine.check_adapter(msgspec.structs.replace(use, digest=""))
    new = msgspec.structs.replace(use, digest=info.digest)
    assert answers(engine, [request("r", (new,), PROMPTS[0])])["r"] != before
    engine.drop_adapter(use.digest)
    outputs = list(engine.run([request("r", (use,), PROMPTS[0])]))
    assert outputs[-1].error is not None and "'mine' have changed" in outputs[-1].error.message
    assert outputs[-1].error.param == "adapter"


def test_what_cannot_be_loaded_says_why(engine: InprocEngine, folder: Path) -> None:
    with pytest.raises(TidemillError, match="does not exist"):
        engine.check_adapter(AdapterUse("gone", str(folder / "none")))
    little = InprocEngine.open(config_of(folder, adapter_memory=1000))
    with pytest.raises(TidemillError, match="give more --adapter-memory"):
        little.check_adapter(AdapterUse("a9", str(folder / "a9")))
    little.close()


def test_requests_end_while_they_wait_for_their_adapter(folder: Path) -> None:
    engine = InprocEngine.open(config_of(folder, adapter_memory=14_000))
    first, second = (use_of(engine, folder, i) for i in (8, 9))
    assert first.nbytes + second.nbytes > 14_000
    batch = [request("long", (first,), PROMPTS[0], 100), request("b", (second,), PROMPTS[1], 4)]
    seen = []
    for output in engine.run(batch):
        if not seen:
            engine.cancel("b")
        seen.append(output)
    ends = {o.request_id: o.finish_reason for o in seen if o.finish_reason}
    assert ends == {"long": "length", "b": "cancelled"}
    assert len(answers(engine, [request("c", (second,), PROMPTS[1], 4)])["c"]) == 4
    engine.close()


def test_a_sleeping_engine_gives_its_adapters_back(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, packed_cache=str(tmp_path))
    opened = open_inproc(config, lambda line: None)
    executor = opened.executor
    loaded: list[int] = []
    unloaded: list[int] = []
    load, unload = executor.load_adapters, executor.unload_adapters

    def note_load(slot: int, uses: tuple[AdapterUse, ...]) -> AdapterInfo:
        loaded.append(slot)
        return load(slot, uses)

    def note_unload(slot: int) -> None:
        unloaded.append(slot)
        unload(slot)

    executor.load_adapters = note_load  # type: ignore[method-assign]
    executor.unload_adapters = note_unload  # type: ignore[method-assign]
    core, messages = make_core(opened, config).start(), queue.SimpleQueue[object]()
    engine = InprocEngine(core)
    client = core.connect(messages.put)
    try:
        first, pinned = use_of(engine, folder, 3), use_of(engine, folder, 4, pinned=True)
        batch = [request(use.name, (use,), PROMPTS[0]) for use in (first, pinned)]
        batch.append(request("base", (), PROMPTS[0]))
        before = answers(engine, batch)
        assert len(loaded) == 2 and not unloaded
        for message in (Sleep(1), Wake(2)):
            core.control(client, message)
            answer = messages.get(timeout=20)
            assert isinstance(answer, Controlled) and answer.error is None, answer
            assert sorted(unloaded) == sorted(loaded[:2])
        assert answers(engine, batch) == before
        assert len(loaded) == 4 and len(unloaded) == 2
    finally:
        core.disconnect(client)
        engine.close()


def test_an_activated_adapter_shares_the_blocks_before_it(
    engine: InprocEngine, folder: Path
) -> None:
    use = use_of(engine, folder, 5, invocation=(61, 62))
    plain = msgspec.structs.replace(use, invocation=())
    prefix = [7, 61, 62, *range(3, 60), *([4] * 13)]  # an earlier occurrence does not count
    outputs = list(engine.run([request("base", (), [*prefix, 6], 1)]))
    prompt = [*prefix, 61, 62, 9]
    outputs = list(engine.run([request("r", (use,), prompt)]))
    assert outputs[0].cached_tokens is not None and outputs[0].cached_tokens > 60
    tokens = [t for o in outputs for t in o.token_ids]
    # Equal to a request in which the base computes the prefix and the adapter the rest: with
    # another answer than the adapter's from the start, and the base's.
    others = answers(engine, [request("all", (plain,), prompt), request("none", (), prompt)])
    assert tokens not in (others["all"], others["none"])
    again = list(engine.run([request("r", (use,), prompt)]))
    assert [t for o in again for t in o.token_ids] == tokens
    error = list(engine.run([request("r", (use,), [5, 6, 7])]))[-1].error
    assert error is not None and "does not invoke the adapter 'a5'" in error.message


async def test_an_engine_that_dies_is_replaced_and_loads_them_again(
    folder: Path, alone: dict[tuple[int, int], list[int]]
) -> None:
    import os
    import signal

    from tidemill.engine.supervisor import SupervisedEngine

    engine = await SupervisedEngine.open(config_of(folder), log_level="error")
    try:
        uses = {-1: ()}
        for i in range(3):
            use = AdapterUse(f"a{i}", str(folder / f"a{i}"))
            info = await engine.check_adapter(use)
            uses[i] = (msgspec.structs.replace(use, digest=info.digest, nbytes=info.nbytes),)
        with pytest.raises(TidemillError):
            await engine.check_adapter(AdapterUse("gone", str(folder / "none")))

        async def answer(name: str, i: int, tokens: int) -> list[int]:
            stream = engine.submit(request(name, uses[i], PROMPTS[0], tokens))
            return [token async for output in stream for token in output.token_ids]

        tasks = [asyncio.ensure_future(answer(f"r{i}", i, 100)) for i in uses]
        while engine.last_stats.generated_tokens < 20:
            await asyncio.sleep(0.001)
        os.kill(engine.pid, signal.SIGKILL)
        found = await asyncio.gather(*tasks)
        for i, tokens in zip(uses, found, strict=True):
            assert tokens[:12] == alone[i, 0] and len(tokens) == 100
            assert await answer("again", i, 100) == tokens
    finally:
        await engine.close()


def test_what_is_cached_for_another_adapter_is_told_as_the_cause(
    engine: InprocEngine, folder: Path
) -> None:
    prompt, found = [7, 3, *range(20, 60)], []
    for name, adapters in (("base", ()), ("a1", (use_of(engine, folder, 1),))):
        asked = msgspec.structs.replace(request(name, adapters, prompt, 1), explain=True)
        histories = [one.history for one in engine.run([asked]) if one.history is not None]
        assert histories[0].prefix is not None
        found.append((histories[0].prefix.miss, histories[0].prefix.cached))
    base, adapted = found
    assert base[0] in (Miss.NEW, Miss.PARTED)  # other tests' prompts may begin alike
    assert adapted == (Miss.OTHER_ADAPTER, 0)
