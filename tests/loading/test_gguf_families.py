"""Every family's GGUF file: written, read back, and named as the gguf package names things.

`make gguf-families` compares the same with llama.cpp's converter and its logits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
from helpers.family_cases import Case, make_case
from helpers.gguf_cases import GGUF_CASES

from tidemill.loading import open_model, safetensors
from tidemill.loading.write.gguf_out import write_gguf
from tidemill.loading.write.gguf_shape import difference, gguf_family, shape_metadata
from tidemill.loading.write.out import Loss, OutTensor
from tidemill.loading.write.plan import to_gguf
from tidemill.models.quantization import to_float32
from tidemill.models.spec import DecoderSpec, inverse_frequencies


def write_without_vocabulary(folder: Path, out: Path, kind: str | None = None) -> Path:
    files = open_model(folder)
    metadata = shape_metadata(files, gguf_family(files))
    metadata["tokenizer.ggml.model"] = "no_vocab"
    write_gguf(out, metadata, list(to_gguf(files, kind, Loss())), "")
    return out


def ropes(spec: DecoderSpec) -> list[Any]:
    """What the layers' positions do, whichever way a file says it."""
    found = []
    for layer in spec.layers:
        rope = layer.mixer.rope
        if rope is not None:
            rates = [inverse_frequencies(rope, context) for context in (8, None)]
            found.append(np.array([*rates[0], *rates[1], rope.attention_factor]))
    return found


@pytest.mark.parametrize("case", GGUF_CASES, ids=lambda c: f"{c.prefix}-{c.about}")
def test_written_and_read_back(case: Case, tmp_path: Path) -> None:
    make_case(case, tmp_path / "m")
    out = write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf")
    before, after = open_model(tmp_path / "m"), open_model(out)
    assert [x.mlp for x in before.spec.layers] == [x.mlp for x in after.spec.layers]
    for a, b in zip(before.spec.layers, after.spec.layers, strict=True):
        assert difference(a.mixer.score_scale, b.mixer.score_scale, "scale") is None
        assert (a.mixer.window, a.mixer.rope is None) == (b.mixer.window, b.mixer.rope is None)
    np.testing.assert_allclose(ropes(after.spec), ropes(before.spec), rtol=1e-6)
    assert set(before.tensors) == set(after.tensors)
    for name, tensor in before.tensors.items():
        np.testing.assert_array_equal(to_float32(after.tensors[name]), to_float32(tensor), name)
    _check_names(out)


def _check_names(out: Path) -> None:
    reader = package.GGUFReader(out)
    arch = reader.fields["general.architecture"].contents()
    number = next(n for n, name in package.MODEL_ARCH_NAMES.items() if name == arch)
    names = {package.TENSOR_NAMES[kind] for kind in package.MODEL_TENSORS[number]}
    for tensor in reader.tensors:
        name, _, suffix = tensor.name.rpartition(".")
        layer = name.split(".")[1] if name.startswith("blk.") else "0"
        assert suffix in ("weight", "bias")
        assert name.replace(f"blk.{layer}.", "blk.{bid}.") in names, tensor.name
    keys = _known_keys(arch)
    for key in reader.fields:
        assert key.startswith("GGUF.") or key in keys, key


def _known_keys(arch: str) -> set[str]:
    groups = [group for name, group in vars(package.Keys).items() if not name.startswith("_")]
    values = [v for group in groups for v in vars(group).values() if isinstance(v, str)]
    return {value.replace("{arch}", arch) for value in values}


@pytest.mark.parametrize("prefix", ["Phi3", "Mixtral", "Falcon"])
def test_quantized_and_read_back(prefix: str, tmp_path: Path) -> None:
    """Rows of fused tensors and of experts are quantized part by part."""
    case = next(c for c in GGUF_CASES if c.prefix == prefix)
    values = {**case.values, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
    if prefix == "Falcon":
        del values["intermediate_size"]
    make_case(Case(case.family, prefix, "", values), tmp_path / "m")
    out = write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf", "q8_0")
    before, after = open_model(tmp_path / "m"), open_model(out)
    for name, tensor in before.tensors.items():
        exact, kept = to_float32(tensor), to_float32(after.tensors[name])
        assert np.abs(kept - exact).max() <= np.abs(exact).max() / 127
        quantized = name.endswith(".weight") and exact.ndim == 2 and "router" not in name
        assert (after.tensors[name].dtype == "Q8_0") == quantized, name


def test_latents_of_early_files(tmp_path: Path) -> None:
    """K's and V's matrices in one tensor, and heads' widths under the common keys, as converters
    wrote DeepSeek's files before queries were absorbed."""
    case = next(c for c in GGUF_CASES if c.prefix == "DeepseekV2" and "low-rank" in c.about)
    make_case(case, tmp_path / "m")
    files = open_model(tmp_path / "m")
    metadata = shape_metadata(files, gguf_family(files))
    mixer = files.spec.attentions()[0]
    latent = mixer.latent
    assert latent is not None
    for key in ("attention.key_length_mla", "attention.value_length_mla"):
        metadata["deepseek2." + key.removesuffix("_mla")] = metadata.pop("deepseek2." + key)
    metadata["deepseek2.attention.head_count_kv"] = mixer.heads
    metadata["tokenizer.ggml.model"] = "no_vocab"
    del metadata["deepseek2.expert_gating_func"]
    tensors = []
    stored = safetensors.read_folder(tmp_path / "m")
    for tensor in to_gguf(files, None, Loss()):
        if tensor.name.endswith("attn_k_b.weight"):
            layer = tensor.name.split(".")[1]
            whole = stored[f"model.layers.{layer}.self_attn.kv_b_proj.weight"]
            name = f"blk.{layer}.attn_kv_b.weight"
            data = bytes(whole.view)
            tensors.append(OutTensor(name, "F32", whole.shape, len(data), partial(iter, [data])))
        elif not tensor.name.endswith("attn_v_b.weight"):
            tensors.append(tensor)
    write_gguf(tmp_path / "m.gguf", metadata, tensors, "")
    after = open_model(tmp_path / "m.gguf")
    assert after.spec.layers[0].mixer.latent == latent
    assert set(files.tensors) == set(after.tensors)
    for name, tensor in files.tensors.items():
        np.testing.assert_array_equal(to_float32(after.tensors[name]), to_float32(tensor), name)
