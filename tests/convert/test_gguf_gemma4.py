"""Gemma 4's GGUF files, written with the gguf package: its names of keys and tensors, transformers'
logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
from convert.test_gguf_families import write_without_vocabulary
from convert.test_pipeline import run
from helpers.backend_driver import BackendDriver, options
from helpers.family_cases import CASES, Case, make_case
from helpers.references import prompt, reference_logits
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tidemill.backends import native
from tidemill.base.errors import TidemillError
from tidemill.loading import open_model
from tidemill.loading.formats import gguf
from tidemill.text import tokenizer as text_tokenizer

# The last one's ropes have no keys.
GEMMA4 = [case for case in CASES if case.family == "Gemma 4 (text)"][:3]
_ROTATING = 0.25  # of a wide head: transformers' default


def _name(names: package.TensorNameMap, stored: str) -> str:
    """The name in a GGUF file, suffixes as llama.cpp's converter has them."""
    for end, kind, suffix in (
        ("router.scale", "ffn_gate_inp", "scale"),
        ("router.per_expert_scale", "ffn_down_exps", "scale"),
    ):
        if stored.endswith(end):
            return f"blk.{stored.split('.')[2]}.{kind}.{suffix}"
    if stored.endswith(("layer_scalar", "_proj")):
        stored += ".weight"
    found = names.get_name(stored, try_suffixes=(".weight", ".bias"))
    assert found is not None, stored
    return found


def write(case: Case, folder: Path, out: Path, **changes: Any) -> Path:
    values = case.values
    layers, types = values["num_hidden_layers"], values["layer_types"]
    shared = values.get("num_kv_shared_layers", 0)
    width, wide = values["intermediate_size"], values.get("use_double_wide_mlp", False)
    writer = package.GGUFWriter(out, "gemma4")
    writer.add_block_count(layers)
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(values["hidden_size"])
    widths = [width * (2 if wide and i >= layers - shared else 1) for i in range(layers)]
    writer.add_feed_forward_length(widths if wide else width)
    writer.add_head_count(values["num_attention_heads"])
    kv = values["num_key_value_heads"]
    full = values.get("num_global_key_value_heads")
    by_layer = [full if kind == "full_attention" else kv for kind in types]
    writer.add_head_count_kv(by_layer if full else kv)
    writer.add_key_length(values["global_head_dim"])
    writer.add_value_length(values["global_head_dim"])
    writer.add_key_length_swa(values["head_dim"])
    writer.add_value_length_swa(values["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    writer.add_rope_dimension_count(values["global_head_dim"])
    writer.add_rope_dimension_count_swa(values["head_dim"])
    writer.add_sliding_window(values["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in types])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(values["hidden_size_per_layer_input"])
    if values.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(values["final_logit_softcapping"])
    if values.get("enable_moe_block"):
        writer.add_expert_count(values["num_experts"])
        writer.add_expert_used_count(values["top_k_experts"])
        writer.add_expert_feed_forward_length(values["moe_intermediate_size"])
    for key, value in changes.items():
        writer.kv_data[0].pop(f"gemma4.{key}", None)
        writer.add_uint32(f"gemma4.{key}", value)
    pairs = values["global_head_dim"] // 2
    rotating = int(values["global_head_dim"] * _ROTATING / 2)
    divisors = np.array([1.0] * rotating + [1e30] * (pairs - rotating), np.float32)
    writer.add_tensor("rope_freqs.weight", divisors)
    names = package.get_tensor_name_map(package.MODEL_ARCH.GEMMA4, layers)
    for stored, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_name(names, stored), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize("case", GEMMA4, ids=lambda c: c.about)
def test_reads_as_transformers_computes(case: Case, tmp_path: Path) -> None:
    model = make_case(case, tmp_path / "m")
    files = open_model(write(case, tmp_path / "m", tmp_path / "m.gguf"))
    text = prompt(75)
    expected = reference_logits(model, text)
    loaded = native.load(files.spec, files.tensors, options(threads=2, max_positions=256))
    found = BackendDriver(loaded).all_logits(text, 20)
    loaded.close()
    assert np.abs(found - expected).max() <= 1e-3 * expected.std()


@pytest.mark.parametrize("case", GEMMA4, ids=lambda c: c.about)
def test_written_as_the_package_names_it(case: Case, tmp_path: Path) -> None:
    make_case(case, tmp_path / "m")
    theirs = gguf.read_file(write(case, tmp_path / "m", tmp_path / "theirs.gguf"))
    ours = gguf.read_file(write_without_vocabulary(tmp_path / "m", tmp_path / "ours.gguf"))
    assert set(ours.tensors) == set(theirs.tensors)
    for name, tensor in ours.tensors.items():
        assert tensor.shape == theirs.tensors[name].shape, name
        assert bytes(tensor.view) == bytes(theirs.tensors[name].view), name
    for key, value in theirs.metadata.items():
        assert key.startswith("GGUF.") or ours.metadata[key] == value, key


def test_vocabulary_is_written(tmp_path: Path) -> None:
    make_case(GEMMA4[0], tmp_path / "m")
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [*"abcdeo\u2581\n", "\u2581a", "bc", "\u2581abc", "\n\n"]
    merges = [("\u2581", "a"), ("b", "c"), ("\u2581a", "bc"), ("\n", "\n")]
    tokenizer = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>",
                   fuse_unk=True, byte_fallback=True)
    )  # fmt: skip
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        pad_token="<pad>",
    ).save_pretrained(tmp_path / "m")  # fmt: skip
    run(tmp_path / "m", tmp_path / "m.gguf")
    files = open_model(tmp_path / "m.gguf")
    assert files.tokenizer.gguf is not None
    assert files.tokenizer.gguf["tokenizer.ggml.model"] == "gemma4"
    assert files.tokenizer.gguf["tokenizer.ggml.token_type"][:8] == [3] * 5 + [6] * 3
    ours = text_tokenizer.Tokenizer(files.tokenizer)
    for words in (" abc abc\n\ncab", "Gemma <turn|> \u00e9 abc"):
        wanted = tokenizer.encode(words, add_special_tokens=False).ids
        assert ours.encode(words, add_special=False) == wanted


@pytest.mark.parametrize(
    "change", [{"attends_backwards": 1}, {"rope.dimension_count_swa": 12}, {"block_count": 5}]
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    case = GEMMA4[0]
    make_case(case, tmp_path / "m")
    with pytest.raises(TidemillError) as raised:
        open_model(write(case, tmp_path / "m", tmp_path / "m.gguf", **change))
    if "block_count" not in change:
        assert raised.value.param == f"gemma4.{next(iter(change))}"
