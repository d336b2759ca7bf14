"""Merged models compared with PEFT's `merge_and_unload`, over tiny random models of families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from convert.test_gguf_families import write_without_vocabulary
from helpers.family_cases import CASES, Case, make_case

from tidemill.convert import pipeline
from tidemill.loading import open_model
from tidemill.loading.formats import safetensors
from tidemill.models.quantization import to_float32

peft = pytest.importorskip("peft")

TOKENS = torch.tensor([[5, 9, 33, 71, 8, 120, 64, 3, 17, 90]])
# Family -> modules of the adapter.
_ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAMILIES: dict[str, list[str]] = {
    "Llama 1 to 3": [*_ALL, "embed_tokens", "lm_head"],
    "Mistral": _ALL,
    "Qwen2, Qwen2.5": _ALL,
    "Qwen3": [*_ALL, "lm_head"],
    "Gemma 1": _ALL,
    "Gemma 2": [*_ALL, "embed_tokens"],
    "Phi-3, 3.5, 4": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "GPT-2": ["c_attn", "c_proj", "c_fc", "wte"],
    "GPT-NeoX, Pythia": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "GPT-J": ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"],
    "Falcon": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "BLOOM": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "OPT": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
    "Command-R": _ALL,
    "DeepSeek-V2": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "patterns": {
        "use_rslora": True, "rank_pattern": {"o_proj|dense|c_proj": 3},
        # In the order of the file, where PEFT sorts the keys: the first that matches applies.
        "alpha_pattern": {"down_proj": 7, r"layers\.1\..*_proj": 5},
    },
    "dora": {"use_dora": True},
}  # fmt: skip


def case_of(family: str) -> Case:
    return next(case for case in CASES if case.family == family)


def make_adapter(model: Any, folder: Path, seed: int = 1, **config: Any) -> Any:
    """A random adapter of PEFT's on the model, saved to `folder`."""
    tuned = peft.get_peft_model(model, peft.LoraConfig(lora_alpha=6, **config)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
            elif "lora_" in name or "modules_to_save" in name:
                parameter.normal_(0.0, 0.1)
    tuned.save_pretrained(folder)
    return tuned


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
    return found


def reload(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_merged_as_peft_computes(family: str, kind: str, tmp_path: Path) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    before = logits(model)
    tuned = make_adapter(
        model, tmp_path / "adapter", r=5, target_modules=FAMILIES[family], **KINDS[kind]
    )
    wanted = logits(tuned)
    assert (wanted - before).abs().max() > 0.05
    pipeline.convert(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    assert (logits(reload(tmp_path / "out")) - wanted).abs().max() < 1e-4


saved_and_biased = pytest.mark.parametrize(
    ("family", "config"),
    [
        pytest.param(
            "Llama 1 to 3",
            {"modules_to_save": ["embed_tokens", "lm_head", "input_layernorm"]},
            id="saved",
        ),
        pytest.param(
            "Gemma 2",
            {"modules_to_save": ["embed_tokens", "post_attention_layernorm"]},
            id="tied-embedding",
        ),
        pytest.param("Gemma 2", {"modules_to_save": ["lm_head"]}, id="tied-head"),
        pytest.param(
            "Qwen2, Qwen2.5", {"bias": "all", "target_modules": ["q_proj", "v_proj"]}, id="biases"
        ),
        pytest.param(
            "GPT-J", {"lora_bias": True, "target_modules": ["fc_in", "fc_out"]}, id="lora-bias"
        ),
        pytest.param("GPT-2", {"target_modules": ["lm_head"]}, id="tied-lora-head"),
    ],
)
"""What adapters change beside low-rank products."""


@saved_and_biased
def test_saved_modules_and_biases(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    wanted_modules = {"target_modules": FAMILIES[family][:2], **config}
    tuned = make_adapter(model, tmp_path / "adapter", r=3, **wanted_modules)
    pipeline.convert(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    assert (logits(reload(tmp_path / "out")) - logits(tuned)).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3-MoE", "OLMoE", "gpt-oss", "Qwen2-MoE"])
def test_experts_in_one_tensor(family: str, tmp_path: Path) -> None:
    model = make_case(case_of(family), tmp_path / "base")
    before = logits(model)
    tuned = make_adapter(
        model, tmp_path / "adapter", r=3, target_modules=["q_proj", "o_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        alpha_pattern={"experts.down_proj": 9},
    )  # fmt: skip
    wanted = logits(tuned)
    assert (wanted - before).abs().max() > 0.05
    pipeline.convert(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    assert (logits(reload(tmp_path / "out")) - wanted).abs().max() < 1e-4


def test_a_vision_part_stays(tmp_path: Path) -> None:
    import transformers

    model = make_case(case_of("Gemma 3, with a vision part"), tmp_path / "base")
    tuned = make_adapter(
        model, tmp_path / "adapter", r=3, target_modules=r".*language_model.*(q_proj|down_proj)"
    )
    pipeline.convert(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    again = transformers.AutoModelForImageTextToText.from_pretrained(
        tmp_path / "out", attn_implementation="eager", dtype=torch.float32
    ).eval()
    assert (logits(again) - logits(tuned)).abs().max() < 1e-4
    before, after = (safetensors.read_folder(tmp_path / name) for name in ("base", "out"))
    vision = [name for name in before if "vision" in name]
    assert vision and all(bytes(before[n].view) == bytes(after[n].view) for n in vision)


@pytest.mark.parametrize("family", ["Llama 1 to 3", "Gemma 1", "Phi-3, 3.5, 4", "GPT-2", "Falcon"])
def test_into_gguf_and_from_gguf(family: str, tmp_path: Path) -> None:
    """Each way from a folder or a GGUF file to the other gives the same merged weights."""
    base = tmp_path / "base"
    model = make_case(case_of(family), base)
    make_adapter(model, tmp_path / "adapter", r=4, target_modules=FAMILIES[family])
    adapter = tmp_path / "adapter"
    pipeline.convert(base, tmp_path / "out", adapter=adapter)
    wanted = open_model(tmp_path / "out").tensors
    write_without_vocabulary(base, tmp_path / "base.gguf")
    pipeline.convert(tmp_path / "base.gguf", tmp_path / "out.gguf", adapter=adapter)
    pipeline.convert(tmp_path / "base.gguf", tmp_path / "from", adapter=adapter)
    for found in (open_model(tmp_path / name).tensors for name in ("out.gguf", "from")):
        assert set(found) == set(wanted)
        for name, tensor in wanted.items():
            np.testing.assert_allclose(
                to_float32(found[name]), to_float32(tensor), rtol=0, atol=2e-6, err_msg=name
            )
