"""Adapters computed beside their base, compared with PEFT over tiny random models of families."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.backend_driver import BackendDriver, options
from helpers.family_cases import make_case
from helpers.tiny_text import tokenizer_json
from oracles.test_adapters import (
    FAMILIES,
    KINDS,
    TOKENS,
    case_of,
    make_adapter,
    saved_and_biased,
)

from tidemill.backends import native
from tidemill.backends import torch as torch_backend
from tidemill.backends.base import LOGITS_ALL
from tidemill.loading import open_model
from tidemill.loading.adapters.source import open_adapter
from tidemill.models import tensors as names
from tidemill.models.adapters import Changes
from tidemill.models.quantization import to_float32

peft = pytest.importorskip("peft")

BACKENDS = {"torch": (torch_backend, 1e-4), "native": (native, 1e-3)}
PROMPT = TOKENS[0].tolist()
_MATRICES = FAMILIES["Mistral"]  # of attention and MLP


def changes_of(base: Path, adapter: Path) -> Changes:
    """An adapter's changes, verified against its base."""
    files = open_model(base)

    def weight(name: str) -> np.ndarray:
        stored = names.EMBED if name == names.LM_HEAD and name not in files.tensors else name
        return to_float32(files.tensors[stored])

    return open_adapter(adapter, files).changes(weight)


def driver_of(base: Path, backend: str = "torch") -> BackendDriver:
    files = open_model(base)
    positions = min(512, files.spec.max_positions)
    loaded = BACKENDS[backend][0].load(files.spec, files.tensors, options(max_positions=positions))
    return BackendDriver(loaded, 256)


def logits_of(driver: BackendDriver, slots: list[int], chunk: int = 4) -> list[np.ndarray]:
    """Logits of every position of the prompt, once per slot, all rows in the same steps."""
    sequences = [driver.sequence(PROMPT) for _ in slots]
    found: list[list[np.ndarray]] = [[] for _ in slots]
    while (begin := sequences[0].computed) < len(PROMPT):
        count = min(chunk, len(PROMPT) - begin)
        inputs = driver.inputs([(s, count) for s in sequences], logits=LOGITS_ALL)
        inputs.adapters = np.array(slots, np.int32)
        outputs = driver.backend.submit(inputs).result()
        assert outputs.logits is not None
        for parts, part in zip(found, np.split(outputs.logits, len(slots)), strict=True):
            parts.append(part)
    for sequence in sequences:
        driver.free(sequence)
    return [np.concatenate(parts) for parts in found]


def reference(model: Any) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(TOKENS).logits[0].float().numpy()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_beside_the_base_as_peft_computes(
    backend: str, family: str, kind: str, tmp_path: Path
) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    plain = reference(model)
    config = {"r": 5, "target_modules": FAMILIES[family], **KINDS[kind]}
    tuned = make_adapter(model, tmp_path / "adapter", **config)
    driver = driver_of(tmp_path / "base", backend)
    driver.backend.load_adapter(3, changes_of(tmp_path / "base", tmp_path / "adapter"))
    base, adapted, again = logits_of(driver, [-1, 3, -1])
    tolerance = BACKENDS[backend][1]
    np.testing.assert_allclose(adapted, reference(tuned), atol=tolerance, rtol=0)
    for found in (base, again):
        np.testing.assert_allclose(found, plain, atol=tolerance, rtol=0)
    driver.backend.close()


@saved_and_biased
@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_modules_and_biases(
    backend: str, family: str, config: dict[str, Any], tmp_path: Path
) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    plain = reference(model)
    wanted_modules = {"target_modules": FAMILIES[family][:2], **config}
    tuned = make_adapter(model, tmp_path / "adapter", r=3, **wanted_modules)
    driver = driver_of(tmp_path / "base", backend)
    driver.backend.load_adapter(0, changes_of(tmp_path / "base", tmp_path / "adapter"))
    adapted, base = logits_of(driver, [0, -1])
    tolerance = BACKENDS[backend][1]
    np.testing.assert_allclose(adapted, reference(tuned), atol=tolerance, rtol=0)
    np.testing.assert_allclose(base, plain, atol=tolerance, rtol=0)
    driver.backend.close()


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3-MoE", "gpt-oss"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_experts_in_one_tensor(backend: str, family: str, tmp_path: Path) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    tuned = make_adapter(
        model, tmp_path / "adapter", r=3, target_modules=["q_proj", "o_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )  # fmt: skip
    driver = driver_of(tmp_path / "base", backend)
    driver.backend.load_adapter(0, changes_of(tmp_path / "base", tmp_path / "adapter"))
    adapted, _ = logits_of(driver, [0, -1])
    np.testing.assert_allclose(adapted, reference(tuned), atol=BACKENDS[backend][1], rtol=0)
    driver.backend.close()


@pytest.mark.parametrize("family", ["Llama 1 to 3", "Qwen3"])
def test_an_activated_adapter_generates_as_in_peft(family: str, tmp_path: Path) -> None:
    """Through the engine, with cached blocks before the invocation, and in a batch with others."""
    from tidemill import LLM, SamplingParams

    model = make_case(case_of(family), tmp_path / "base")
    tokens = [*PROMPT, 77, 78, *PROMPT[:5], *range(30, 70), 77, 78, 6]
    plain = generated(model, tokens)
    tuned = make_adapter(
        model, tmp_path / "adapter", r=4, target_modules=FAMILIES[family][:7],
        alora_invocation_tokens=[77, 78], task_type="CAUSAL_LM",
    )  # fmt: skip
    wanted = generated(tuned, tokens)
    assert wanted != plain
    (tmp_path / "base" / "tokenizer.json").write_bytes(tokenizer_json())
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLM(
        tmp_path / "base", dtype="float32", kv_memory=2**22, packed_cache="off", block_size=16
    ) as llm:
        llm.load_adapter("mine", tmp_path / "adapter")
        base = llm.generate([tokens], params)[0]
        alone = llm.generate([tokens], params, adapter="mine")[0]
        assert base.outputs[0].token_ids == plain and alone.outputs[0].token_ids == wanted
        assert alone.cached_tokens > 48
        both = llm.generate([tokens, tokens, tokens], params, adapter=["mine", None, "mine"])
        assert [out.outputs[0].token_ids for out in both] == [wanted, plain, wanted]


def answers(
    base: Path, backend: str, adapters: dict[str, Path], asked: list[str | None]
) -> list[list[int]]:
    """64 greedy tokens after the prompt, of all in one batch."""
    from tidemill import LLM, SamplingParams

    (base / "tokenizer.json").write_bytes(tokenizer_json())
    params = SamplingParams(temperature=0.0, max_tokens=64, min_tokens=64)
    with LLM(
        base, backend=backend, dtype="float32", kv_memory=2**24, packed_cache="off",
        adapters=adapters,
    ) as llm:  # fmt: skip
        found = llm.generate([PROMPT] * len(asked), params, adapter=asked)
    return [list(out.outputs[0].token_ids) for out in found]


@pytest.mark.parametrize("family", ["Qwen3", "Gemma 2", "GPT-2", "DeepSeek-V2"])
def test_greedy_tokens_are_those_of_peft(family: str, tmp_path: Path) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    tuned = make_adapter(model, tmp_path / "mine", r=4, target_modules=FAMILIES[family])
    for backend in BACKENDS:
        found = answers(
            tmp_path / "base", backend, {"mine": tmp_path / "mine"}, ["mine", None, "mine"]
        )
        assert found[0] == found[2] == greedy(tuned, PROMPT, found[0]), backend
        with tuned.disable_adapter():
            assert found[1] == greedy(tuned, PROMPT, found[1]), backend


def test_a_batch_of_16_adapters_and_the_base_is_as_in_peft(tmp_path: Path) -> None:
    """Ranks 1 to 64, base rows between; each answer is PEFT's of this adapter alone."""
    model = make_case(case_of("Llama 1 to 3"), tmp_path / "base")
    folders, tuned = {}, {}
    for i, rank in enumerate((1, 2, 3, 5, 8, 13, 16, 24, 27, 32, 33, 40, 48, 55, 63, 64)):
        folders[f"a{i}"] = tmp_path / f"a{i}"
        config = {"r": rank, "target_modules": _MATRICES}
        tuned[f"a{i}"] = make_adapter(deepcopy(model), folders[f"a{i}"], seed=i, **config)
    asked = [name for i in range(16) for name in (f"a{i}", None)]
    for backend in BACKENDS:
        found = answers(tmp_path / "base", backend, folders, asked)
        assert len({tuple(tokens) for tokens in found}) == 17
        for name, tokens in dict(zip(asked, found, strict=True)).items():
            reference_model = model if name is None else tuned[name]
            assert tokens == greedy(reference_model, PROMPT, tokens), (backend, name)


def greedy(model: Any, prompt: list[int], answer: list[int], front: int = 0) -> list[int]:
    """The likeliest token at each place of an answer that begins as told; an answer that equals it
    is the greedy one. `front` places are in front of the prompt; the end token is banned."""
    tokens = torch.tensor([[*prompt, *answer[:-1]]])
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0]
    logits[:, 2] = -torch.inf
    found: list[int] = logits[front + len(prompt) - 1 :].argmax(-1).tolist()
    return found


def generated(model: Any, tokens: list[int]) -> list[int]:
    with torch.no_grad():
        found = model.generate(
            input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens)),
            max_new_tokens=64, min_new_tokens=64, do_sample=False,
        )  # fmt: skip
    return [int(token) for token in found[0, len(tokens) :]]
