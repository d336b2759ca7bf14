"""Every family's GGUF file: written, read back, and named as the gguf package names things.

`make gguf-families` compares the same with llama.cpp's converter and its logits.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.family_cases import CASES, Case, make_case
from helpers.gguf_cases import GGUF_CASES, RECURRENT_CASES
from helpers.references import prompt, reference_logits
from safetensors.numpy import load_file, save_file

from tidemill.backends import native, torch
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.convert.gguf.names import row_order
from tidemill.convert.gguf.shape import (
    difference,
    gguf_family,
    plain_spec,
    shape_metadata,
)
from tidemill.convert.gguf.tensors import to_gguf
from tidemill.convert.gguf.values import folded_factors, folded_spec
from tidemill.convert.gguf.writer import write_gguf
from tidemill.convert.output import Loss, OutTensor
from tidemill.loading import open_model
from tidemill.loading.formats import safetensors
from tidemill.models.quantization import to_float32
from tidemill.models.spec import DecoderSpec, inverse_frequencies

_WITHOUT_SUFFIX = ("ssm_a", "ssm_d", "ffn_norm")  # the latter in Falcon-H1's files alone


def write_without_vocabulary(folder: Path, out: Path, kind: str | None = None) -> Path:
    files = open_model(folder)
    metadata = shape_metadata(files, gguf_family(files))
    metadata["tokenizer.ggml.model"] = "no_vocab"
    write_gguf(out, metadata, list(to_gguf(files, kind, Loss())), "")
    return out


def ropes(spec: DecoderSpec) -> list[Any]:
    """What the layers' positions do, whichever way a file says it."""
    found = []
    for mixer in spec.attentions().values():
        rope = mixer.rope
        if rope is not None:
            rates = [inverse_frequencies(rope, context) for context in (8, None)]
            found.append(np.array([*rates[0], *rates[1], rope.attention_factor]))
    return found


@pytest.mark.parametrize(
    "case", [*GGUF_CASES, *RECURRENT_CASES], ids=lambda c: f"{c.prefix}-{c.about}"
)
def test_written_and_read_back(case: Case, tmp_path: Path) -> None:
    make_case(case, tmp_path / "m")
    out = write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf")
    before, after = open_model(tmp_path / "m"), open_model(out)
    family = gguf_family(before)
    described = folded_spec(before, family)
    assert difference(plain_spec(after.spec), plain_spec(described), "") is None
    for found, wanted in zip(ropes(after.spec), ropes(before.spec), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-20)
    assert set(before.tensors) == set(after.tensors)
    multiplied = folded_factors(before, family)
    for name, tensor in before.tensors.items():
        found, wanted = to_float32(after.tensors[name]), to_float32(tensor)
        order = row_order(before.spec, family, name) if ".rec." in name else None
        if order is not None:  # value heads in turns
            wanted = wanted[:, order] if name.endswith("rec.out.weight") else wanted[order]
        if name.endswith("rec.a_log"):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
        elif name.split(".", 2 * name.startswith("layers."))[-1] not in multiplied:
            np.testing.assert_array_equal(found, wanted, name)
    _check_names(out)


@pytest.mark.parametrize("case", RECURRENT_CASES, ids=lambda c: f"{c.prefix}-{c.about}")
def test_recurrent_files_compute_as_transformers(case: Case, tmp_path: Path) -> None:
    model = make_case(case, tmp_path / "m")
    files = open_model(write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf"))
    text = prompt(75)
    expected = reference_logits(model, text)
    backends = (native, torch) if "2 value heads" in case.about else (native,)
    for backend in backends:
        loaded = backend.load(files.spec, files.tensors, options(threads=2, max_positions=256))
        found = BackendDriver(loaded).all_logits(text, 20)
        loaded.close()
        assert np.abs(found - expected).max() <= 1e-4 * expected.std()


def _check_names(out: Path) -> None:
    reader = package.GGUFReader(out)
    arch = reader.fields["general.architecture"].contents()
    number = next(n for n, name in package.MODEL_ARCH_NAMES.items() if name == arch)
    names = {package.TENSOR_NAMES[kind] for kind in package.MODEL_TENSORS[number]}
    for tensor in reader.tensors:
        name, _, suffix = tensor.name.rpartition(".")
        if suffix in _WITHOUT_SUFFIX:
            name = tensor.name
        else:
            assert suffix in ("weight", "bias", "scale"), tensor.name  # scales in Gemma 4's alone
        layer = name.split(".")[1] if name.startswith("blk.") else "0"
        assert name.replace(f"blk.{layer}.", "blk.{bid}.") in names, tensor.name
    keys = _known_keys(arch)
    for key in reader.fields:
        assert key.startswith("GGUF.") or key in keys, key


def _known_keys(arch: str) -> set[str]:
    groups = [group for name, group in vars(package.Keys).items() if not name.startswith("_")]
    values = [v for group in groups for v in vars(group).values() if isinstance(v, str)]
    values.append("{arch}.attention.recurrent_layers")  # of the package's next version
    return {value.replace("{arch}", arch) for value in values}


@pytest.mark.parametrize(
    ("prefix", "index", "named"),
    [
        ("Mamba2", 1, "rec.qkv.bias"),  # biases of projections
        ("FalconH1", 2, "rec.qkv.bias"),
        ("GraniteMoeHybrid", 2, "rec.qkv.bias"),
        ("NemotronH", 2, "rec.qkv.bias"),
        ("Qwen3Next", 1, "normalize"),
        ("Llama4Text", 0, "window"),  # chunks of 16
        ("Llama4Text", 2, "qk_norm"),
        ("Gemma4Text", 3, "scaling"),  # of the local rope
    ],
)
def test_what_files_cannot_say_is_refused(
    prefix: str, index: int, named: str, tmp_path: Path
) -> None:
    make_case([c for c in CASES if c.prefix == prefix][index], tmp_path / "m")
    files = open_model(tmp_path / "m")
    with pytest.raises(TidemillError, match=named) as raised:
        shape_metadata(files, gguf_family(files))
    assert (raised.value.kind, raised.value.param) == (ErrorKind.UNSUPPORTED, "out")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mamba_norm_before_gate": True}, "gate_first"),
        ({"time_step_limit": [0.01, 0.5]}, "time_limits"),
        ({"tie_word_embeddings": True, "lm_head_multiplier": 0.4}, "multipliers differ"),
    ],
)
def test_falcon_h1_that_files_cannot_say(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    case = next(c for c in RECURRENT_CASES if "gated and normed" in c.about)
    make_case(case, tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    if "tie_word_embeddings" in change:
        weights = load_file(tmp_path / "m" / "model.safetensors")
        del weights["lm_head.weight"]
        save_file(weights, tmp_path / "m" / "model.safetensors")
    files = open_model(tmp_path / "m")
    with pytest.raises(TidemillError, match=named):
        shape_metadata(files, gguf_family(files))
        list(to_gguf(files, None, Loss()))


def test_decays_must_be_below_zero(tmp_path: Path) -> None:
    make_case(RECURRENT_CASES[0], tmp_path / "m")
    files = open_model(tmp_path / "m")
    metadata = shape_metadata(files, gguf_family(files))
    metadata["tokenizer.ggml.model"] = "no_vocab"
    tensors = [
        replace(t, pieces=partial(iter, [bytes(t.nbytes)])) if t.name == "blk.1.ssm_a" else t
        for t in to_gguf(files, None, Loss())
    ]
    write_gguf(tmp_path / "m.gguf", metadata, tensors, "")
    after = open_model(tmp_path / "m.gguf")
    with pytest.raises(TidemillError, match="below 0") as raised:
        to_float32(after.tensors["layers.1.rec.a_log"])
    assert raised.value.param == "blk.1.ssm_a"


def test_layers_that_draft_tokens_are_left_out(tmp_path: Path) -> None:
    """A file counts them with the others, and says of each whether it is recurrent."""
    case = next(c for c in RECURRENT_CASES if c.prefix == "Qwen3_5Text")
    make_case(case, tmp_path / "m")
    files = open_model(tmp_path / "m")
    tensors = list(to_gguf(files, None, Loss()))
    tensors += [
        replace(t, name=t.name.replace("blk.3.", "blk.4."))
        for t in tensors
        if t.name.startswith("blk.3.")
    ]
    for name, shape in (("eh_proj", (72, 144)), ("enorm", (72,)), ("shared_head_norm", (72,))):
        size = 4 * math.prod(shape)
        stored = f"blk.4.nextn.{name}.weight"
        tensors.append(OutTensor(stored, "F32", shape, size, partial(iter, [bytes(size)])))
    metadata = shape_metadata(files, gguf_family(files))
    del metadata["qwen35.full_attention_interval"]
    metadata |= {
        "qwen35.block_count": 5,
        "qwen35.nextn_predict_layers": 1,
        "qwen35.attention.recurrent_layers": [True, True, True, False, False],
        "tokenizer.ggml.model": "no_vocab",
    }
    write_gguf(tmp_path / "m.gguf", metadata, tensors, "")
    after = open_model(tmp_path / "m.gguf")
    assert difference(plain_spec(after.spec), plain_spec(files.spec), "") is None
    assert set(after.tensors) == set(files.tensors)


@pytest.mark.parametrize("prefix", ["Phi3", "Mixtral", "Falcon", "Mamba2"])
def test_quantized_and_read_back(prefix: str, tmp_path: Path) -> None:
    """Rows of fused tensors and of experts are quantized part by part."""
    case = next(c for c in [*GGUF_CASES, *RECURRENT_CASES] if c.prefix == prefix)
    values = {**case.values, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
    if prefix == "Falcon":
        del values["intermediate_size"]
    if prefix == "Mamba2":
        values = {**case.values, "hidden_size": 64, "num_heads": 4, "head_dim": 32}
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
