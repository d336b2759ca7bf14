"""Experts of quantized checkpoints: values as the scheme says, four and eight bits in memory, and
the logits of a float model with the same values."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import packers
from helpers.backend_driver import BackendDriver, options
from helpers.family_cases import Case, make_case
from helpers.references import prompt, reference_logits
from safetensors.torch import load_file, save_file

from tidemill.backends import native
from tidemill.backends import torch as torch_backend
from tidemill.backends.native.weights import packed_type
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model
from tidemill.loading.lazy import Holding
from tidemill.loading.mapped import MappedFile, StoredTensor
from tidemill.loading.places import one_tensor
from tidemill.loading.selected import Recent, select
from tidemill.models.blocks import DECODERS
from tidemill.models.quantization import to_float32
from tidemill.models.sources import Source

_SIZES = {
    "vocab_size": 517, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
    "max_position_embeddings": 128, "num_experts_per_tok": 2, "pad_token_id": 0,
}  # fmt: skip
GPT_OSS = Case("gpt-oss", "GptOss", "", {
    **_SIZES, "num_local_experts": 3, "sliding_window": 19,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
})  # fmt: skip
QWEN = Case("Qwen3-MoE", "Qwen3Moe", "", {
    **_SIZES, "num_experts": 5, "moe_intermediate_size": 64, "intermediate_size": 64,
})  # fmt: skip


def add_to_config(folder: Path, section: dict[str, Any]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "quantization_config": section}))


def mxfp4_folder(folder: Path, scales: tuple[int, int] = (118, 124)) -> Any:
    """gpt-oss as it is published, and transformers' float model of the same values."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = make_case(GPT_OSS, folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    parameters = dict(model.named_parameters())
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, k, n = tensors.pop(name).shape  # stored turned
        blocks = torch.randint(0, 256, (experts, n, k // 32, 16), generator=generator)
        blocks[0, 0, 0] = 0
        codes = torch.randint(*scales, (experts, n, k // 32), generator=generator)
        codes[0, 0, 0] = 3  # of a block of zeros, any will do
        tensors[f"{name}_blocks"] = blocks.to(torch.uint8)
        tensors[f"{name}_scales"] = codes.to(torch.uint8)
        exact = convert_moe_packed_tensors(
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.float32
        )
        with torch.no_grad():
            parameters[name].copy_(exact)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    add_to_config(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return model


def logits(folder: Path, backend: Any, text: list[int], dtype: str = "float32") -> np.ndarray:
    files = open_model(folder)
    tensors = files.tensors.held(Holding(wide=dtype == "float32"))
    given = options(dtype=dtype, kv_dtype=dtype, threads=2)
    loaded = backend.load(files.spec, tensors, given)
    found = BackendDriver(loaded).all_logits(text)
    loaded.close()
    return found


def check_logits(folder: Path, text: list[int], want: np.ndarray) -> None:
    """torch multiplies the exact values; the native kernels round activations to eight bits, which
    may send a token that stood between two experts to the other."""
    exact = np.abs(logits(folder, torch_backend, text) - want)
    assert exact.max() < 1e-3 * want.std()
    rounded = np.abs(logits(folder, native, text) - want).max(axis=1)
    assert np.median(rounded) < 0.05 * want.std()


def test_published_gpt_oss(tmp_path: Path) -> None:
    model = mxfp4_folder(tmp_path)
    files = open_model(tmp_path)
    experts = {n: p for n, p in files.tensors.places.items() if ".mlp.experts." in n}
    matrices = {n: p for n, p in experts.items() if n.endswith("weight")}
    assert {p.exact for p in matrices.values()} == {"MXFP4"} and len(matrices) == 2 * 3 * 3
    fused = dict(model.named_parameters())["model.layers.1.mlp.experts.gate_up_proj"]
    expected = fused[2].detach().numpy().T
    for first, part in enumerate(("gate", "up")):
        place = files.tensors.places[f"layers.1.mlp.experts.2.{part}.weight"]
        assert place.dtype == "MXFP4"
        np.testing.assert_array_equal(place.values(), expected[first::2])
        np.testing.assert_array_equal(to_float32(place.packed()), expected[first::2])
    text = prompt(40)
    want = reference_logits(model, text)
    check_logits(tmp_path, text, want)
    # As it is served: four bits a value, and nothing is refused.
    served = np.abs(logits(tmp_path, native, text, "bfloat16") - want).max(axis=1)
    assert np.median(served) < 0.1 * want.std()


@pytest.mark.parametrize("exponents", [(90, 95), (0, 3)])
def test_scales_beyond_float16_are_held(tmp_path: Path, exponents: tuple[int, int]) -> None:
    mxfp4_folder(tmp_path, exponents)
    tensors = open_model(tmp_path).tensors
    name = "layers.0.mlp.experts.0.down.weight"
    place, held = tensors.places[name], tensors.held(Holding(wide=False))[name]
    assert held.dtype == "MXFP4" and held.nbytes == 64 * 96 // 32 * 17
    values = place.values()
    assert 0 < np.abs(values).max() < 2.0**-14
    np.testing.assert_array_equal(to_float32(place.packed()), values)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    mxfp4_folder(tmp_path, (255, 256))
    tensors = open_model(tmp_path).tensors
    with pytest.raises(TidemillError) as caught:
        _ = tensors.held(Holding(wide=False))["layers.0.mlp.experts.0.down.weight"].data
    assert caught.value.kind is ErrorKind.UNSUPPORTED and "NaN" in caught.value.message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("model.layers.0.mlp.experts.down_proj_scales"), "_scales"),
        (lambda t: _cut(t, "model.layers.0.mlp.experts.down_proj_scales"), "scales"),
        (lambda t: _cut(t, "model.layers.1.mlp.experts.gate_up_proj_blocks"), "blocks"),
    ],
)
def test_damaged_blocks_are_named(
    change: Callable[[dict[str, torch.Tensor]], Any], named: str, tmp_path: Path
) -> None:
    mxfp4_folder(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TidemillError) as caught:
        open_model(tmp_path)
    assert caught.value.kind is ErrorKind.MODEL_FILE and named in caught.value.message


def _cut(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name][..., :-1].contiguous()


def test_an_expert_of_a_stack_is_unpacked_alone(tmp_path: Path) -> None:
    """GGUF keeps a layer's experts in one tensor of three axes."""
    size, count, _ = DECODERS["Q5_0"]
    data = np.random.default_rng(0).integers(0, 60, 3 * 4 * 64 // count * size, np.uint8)
    (tmp_path / "file").write_bytes(b"head" + data.tobytes())
    file = MappedFile(tmp_path / "file")
    whole = one_tensor(StoredTensor("x", "Q5_0", (3, 4, 64), file, 4, data.size))
    for expert in range(3):
        alone = select(whole, Source("x", expert=expert, rows=slice(1, 4, 2)), Recent())
        assert (alone.shape, alone.exact, alone.nbytes) == ((2, 64), "Q5_0", data.size // 6)
        assert [part.nbytes for part in alone.parts] == [data.size // 3]
        expected = whole.values()[expert, 1::2]
        np.testing.assert_array_equal(alone.values(), expected)
        np.testing.assert_array_equal(to_float32(alone.packed()), expected)


_CT = {"quant_method": "compressed-tensors"}
_GROUP = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


@pytest.mark.parametrize(
    ("packer", "section", "held"),
    [
        (partial(packers.gptq, bits=4, group=32),
         {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, "Q4_0"),
        (partial(packers.gptq, bits=8, group=32),
         {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": True}, "Q8_0"),
        (partial(packers.awq, group=32),
         {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}, "Q5_0"),
        (partial(packers.pack_quantized, bits=4, group=32),
         {**_CT, "format": "pack-quantized",
          "config_groups": {"a": {"targets": ["Linear"], "weights": _GROUP}}}, "Q4_0"),
        (packers.int8_rows,
         {**_CT, "format": "int-quantized",
          "config_groups": {"a": {"targets": ["Linear"], "weights": _INT8}}}, "Q8_0"),
    ],
    ids=["gptq4", "gptq8", "awq", "compressed4", "compressed8"],
)  # fmt: skip
def test_experts_stay_small(
    packer: Callable[..., Any], section: dict[str, Any], held: str, tmp_path: Path
) -> None:
    model = make_case(QWEN, tmp_path)
    stored: dict[str, torch.Tensor] = {}
    exact: dict[str, np.ndarray] = {}
    for name, value in load_file(tmp_path / "model.safetensors").items():
        if ".experts." not in name:
            stored[name] = value
            continue
        parts, exact[name] = packer(value.numpy())
        stem = name.removesuffix(".weight")
        stored |= {stem + end: torch.as_tensor(np.array(p)) for end, p in parts.items()}
    assert len(exact) == 2 * 5 * 3
    save_file(stored, tmp_path / "model.safetensors")
    add_to_config(tmp_path, section)
    _set_experts(model, exact)
    files = open_model(tmp_path)
    tensors = files.tensors.held(Holding(wide=False))
    for name in (n for n in tensors if ".mlp.experts." in n):
        assert packed_type(name, tensors[name], options(dtype="bfloat16")) == held
    place = files.tensors.places["layers.1.mlp.experts.4.down.weight"]
    np.testing.assert_array_equal(
        to_float32(place.packed()), exact["model.layers.1.mlp.experts.4.down_proj.weight"]
    )
    text = prompt(30)
    want = reference_logits(model, text)
    check_logits(tmp_path, text, want)


def _set_experts(model: Any, exact: dict[str, np.ndarray]) -> None:
    """transformers keeps a layer's experts in two tensors."""
    parameters = dict(model.named_parameters())
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        for expert in range(5):
            gate, up, down = (
                torch.from_numpy(np.ascontiguousarray(exact[f"{prefix}{expert}.{p}_proj.weight"]))
                for p in ("gate", "up", "down")
            )
            with torch.no_grad():
                parameters[prefix + "gate_up_proj"][expert] = torch.cat([gate, up])
                parameters[prefix + "down_proj"][expert] = down
