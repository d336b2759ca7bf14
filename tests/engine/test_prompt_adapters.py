"""Prompt adapters in a running engine: vectors, or keys and values, in front of a prompt, beside
LoRA and base rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engine.test_adapters import config_of, random_adapter
from helpers.tiny_adapter import write_prompt_adapter
from helpers.tiny_folder import write_folder

from tidemill.base.errors import TidemillError
from tidemill.contract.request import AdapterUse, ChoiceOutput, EngineRequest, Pooling
from tidemill.contract.sampling import SamplingParams
from tidemill.engine.offline import InprocEngine

VECTORS = 37  # more than a block, and not a number of them
PROMPTS = [[5, 9, 33, 17, 2 + i] * (1 + 4 * i) for i in range(3)]
PREFIX = 41
NAMES = ("base", "soft", "lora", "other", "prefix")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompt-adapters")
    write_folder(folder / "base")
    rng = np.random.default_rng(3)
    for name, count in (("soft", VECTORS), ("other", 3)):
        write_prompt_adapter(folder / name, rng.standard_normal((count, 32)).astype(np.float32))
    table = rng.standard_normal((PREFIX, 2 * 2 * 16)).astype(np.float32)  # 2 layers, 16 wide
    write_prompt_adapter(folder / "prefix", table, peft_type="PREFIX_TUNING", token_dim=16)
    random_adapter(folder / "lora", 1, 4)
    return folder


def opened(folder: Path, **changes: object) -> InprocEngine:
    return InprocEngine.open(config_of(folder, **changes))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[InprocEngine]:
    engine = opened(folder)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def uses(engine: InprocEngine, folder: Path) -> dict[str, tuple[AdapterUse, ...]]:
    found: dict[str, tuple[AdapterUse, ...]] = {"base": ()}
    for name in NAMES[1:]:
        use = AdapterUse(name, str(folder / name))
        info = engine.check_adapter(use)
        use = msgspec.structs.replace(
            use, digest=info.digest, nbytes=info.nbytes, virtual_tokens=info.virtual_tokens,
            prefix=info.prefix,
        )  # fmt: skip
        found[name] = (use,)
    assert [sum(u.virtual_tokens for u in found[n]) for n in NAMES] == [0, VECTORS, 0, 3, PREFIX]
    return found


def request(
    name: str, adapters: tuple[AdapterUse, ...], prompt: list[int], **sampling: Any
) -> EngineRequest:
    settings = {"temperature": 0.0, "seed": 0, "max_tokens": 16, "ignore_eos": True, **sampling}
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**settings),
        adapters=adapters,
    )


def outputs_of(engine: InprocEngine, requests: list[EngineRequest]) -> list[ChoiceOutput]:
    outputs = list(engine.run(requests))
    assert all(output.error is None for output in outputs), [o.error for o in outputs]
    return outputs


def answers(
    engine: InprocEngine, requests: list[EngineRequest]
) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for output in outputs_of(engine, requests):
        found.setdefault((output.request_id, output.choice), []).extend(output.token_ids)
    return found


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "n": 2, "repetition_penalty": 1.3},
    {"beam_width": 3, "n": 2},
    {"temperature": 0.8, "no_repeat_ngram_size": 2, "prompt_logprobs": 1},
]


def everything(uses: dict[str, tuple[AdapterUse, ...]]) -> list[EngineRequest]:
    return [
        request(f"{name}/{p}/{o}", uses[name], prompt, **options)
        for name in NAMES
        for p, prompt in enumerate(PROMPTS)
        for o, options in enumerate(OPTIONS)
    ]


@pytest.fixture(scope="module")
def alone(
    folder: Path, uses: dict[str, tuple[AdapterUse, ...]]
) -> dict[tuple[str, int], list[int]]:
    engine = opened(folder, prefix_caching=False)
    found: dict[tuple[str, int], list[int]] = {}
    for one in everything(uses):
        found |= answers(engine, [one])
    engine.close()
    assert len({tuple(tokens) for tokens in found.values()}) > 0.8 * len(found)
    return found


CONDITIONS: dict[str, dict[str, object]] = {
    "together": {},
    "chunked": {"max_step_tokens": 16},
    "preempted": {"kv_memory": 2**17, "prefix_caching": False},
    "drafting": {"speculate": "lookup"},
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_batch_of_all_is_as_each_alone(
    condition: str,
    folder: Path,
    uses: dict[str, tuple[AdapterUse, ...]],
    alone: dict[tuple[str, int], list[int]],
) -> None:
    """LoRA, prompt adapters and the base; sampled, penalized, searched with beams; cached or
    preempted."""
    engine = opened(folder, **CONDITIONS[condition])
    for _ in range(2):
        assert answers(engine, everything(uses)) == alone
    if condition == "preempted":
        assert engine.stats.preemptions > 2
    engine.close()


@pytest.mark.parametrize("name", ["soft", "prefix"])
def test_clients_are_told_of_their_own_tokens_alone(
    name: str, engine: InprocEngine, uses: dict[str, tuple[AdapterUse, ...]]
) -> None:
    prompt, before = list(range(3, 60)), engine.stats.prompt_tokens
    cached = []
    for _ in range(2):
        first = outputs_of(engine, [request("r", uses[name], prompt, prompt_logprobs=0)])[0]
        assert first.prompt_logprobs is not None and len(first.prompt_logprobs) == len(prompt)
        assert first.prompt_logprobs[0] is None
        assert [one.token_id for one in first.prompt_logprobs[1:] if one] == prompt[1:]
        first = outputs_of(engine, [request("r", uses[name], prompt)])[0]
        cached.append(first.cached_tokens)
    assert cached[0] == cached[1] and cached[0] is not None and 50 <= cached[0] < len(prompt)
    assert engine.stats.prompt_tokens - before == 4 * len(prompt)


def test_the_context_holds_the_vectors_too(
    engine: InprocEngine, uses: dict[str, tuple[AdapterUse, ...]]
) -> None:
    room = 128 - VECTORS
    fits = outputs_of(engine, [request("r", uses["soft"], [5] * (room - 1))])
    assert sum(len(output.token_ids) for output in fits) == 1
    error = list(engine.run([request("r", uses["soft"], [5] * room)]))[-1].error
    assert error is not None and f"puts {VECTORS} vectors in front" in error.message


@pytest.mark.parametrize("several", [True, False])
def test_they_are_neither_added_up_nor_scaled(
    several: bool, engine: InprocEngine, uses: dict[str, tuple[AdapterUse, ...]]
) -> None:
    soft = uses["soft"]
    asked = (*soft, *uses["lora"]) if several else (msgspec.structs.replace(soft[0], scale=0.5),)
    error = list(engine.run([request("r", asked, PROMPTS[0])]))[-1].error
    assert error is not None and error.kind in ("bad_request", "unsupported")
    assert "neither scaled nor added to others" in error.message


def test_vectors_of_the_last_token_alone_are_pooled(
    engine: InprocEngine, uses: dict[str, tuple[AdapterUse, ...]]
) -> None:
    def pooled(name: str, kind: str) -> ChoiceOutput:
        asked = request("r", uses[name], PROMPTS[0], max_tokens=1)
        return list(engine.run([msgspec.structs.replace(asked, pooling=Pooling(kind))]))[-1]

    base, soft = pooled("base", "last"), pooled("soft", "last")
    assert base.error is None and soft.error is None and base.pooled != soft.pooled
    refused = pooled("soft", "mean").error
    assert refused is not None and "puts vectors in front of the input" in refused.message


def test_integers_in_the_cache_are_refused_for_prefixes(folder: Path) -> None:
    engine = opened(folder, kv_dtype="int8")
    with pytest.raises(TidemillError, match="give --kv-dtype bfloat16"):
        engine.check_adapter(AdapterUse("prefix", str(folder / "prefix")))
    assert engine.check_adapter(AdapterUse("soft", str(folder / "soft"))).virtual_tokens == VECTORS
    engine.close()


def test_a_prefix_in_bfloat16(folder: Path) -> None:
    """Rounded once; the answer is near that of float32, and another than the base's."""
    vectors = {}
    for kv_dtype in ("float32", "bfloat16"):
        engine = opened(folder, kv_dtype=kv_dtype)
        use = AdapterUse("prefix", str(folder / "prefix"))
        info = engine.check_adapter(use)
        use = msgspec.structs.replace(
            use, digest=info.digest, virtual_tokens=info.virtual_tokens, prefix=info.prefix
        )
        for name, adapters in (("base", ()), ("prefix", (use,))):
            asked = request("r", adapters, PROMPTS[1], max_tokens=1)
            asked = msgspec.structs.replace(asked, pooling=Pooling("last"))
            vectors[kv_dtype, name] = np.frombuffer(
                outputs_of(engine, [asked])[-1].pooled, np.float32
            )
        engine.close()
    wide, narrow = vectors["float32", "prefix"], vectors["bfloat16", "prefix"]
    assert 0 < np.abs(wide - narrow).max() < 0.05
    assert np.abs(wide - vectors["float32", "base"]).max() > 0.2
