"""Opening GGUF files: every key and tensor that is wrong or not understood is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model

METADATA: dict[str, Any] = {
    "block_count": 1,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "rope.dimension_count": 8,
    "vocab_size": 48,
}


def tensors() -> dict[str, np.ndarray]:
    shapes = {
        "token_embd.weight": (48, 32),
        "output_norm.weight": (32,),
        "output.weight": (48, 32),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (64, 32),
        "blk.0.ffn_up.weight": (64, 32),
        "blk.0.ffn_down.weight": (32, 64),
    }
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def write(
    path: Path,
    metadata: dict[str, Any],
    weights: dict[str, np.ndarray],
    *,
    arch: str = "llama",
    extra: Callable[[Any], None] | None = None,
) -> Path:
    writer = package.GGUFWriter(path, arch)
    for key, value in metadata.items():
        add = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
        getattr(writer, f"add_{add[type(value)]}")(f"{arch}.{key}", value)
    if extra is not None:
        extra(writer)
    for name, array in weights.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_plain_file(tmp_path: Path) -> None:
    weights = tensors()
    files = open_model(write(tmp_path / "m.gguf", METADATA, weights))
    assert files.spec.weights_dtype == "F32" and files.tokenizer.gguf is None
    # llama.cpp's files hold Q with neighbouring pairs: row 2 j + h of a head is row j of half h.
    stored = weights["blk.0.attn_q.weight"].reshape(4, 4, 2, 32)
    expected = stored.swapaxes(1, 2).reshape(32, 32)
    got = np.frombuffer(files.tensors["layers.0.attn.q.weight"].data, np.float32)
    np.testing.assert_array_equal(got.reshape(32, 32), expected)
    v = np.frombuffer(files.tensors["layers.0.attn.v.weight"].data, np.float32)
    np.testing.assert_array_equal(v.reshape(16, 32), weights["blk.0.attn_v.weight"])


def test_any_name_will_do(tmp_path: Path) -> None:
    assert open_model(write(tmp_path / "model", METADATA, tensors())).format == "gguf"


def without(*names: str) -> dict[str, np.ndarray]:
    return {n: a for n, a in tensors().items() if n not in names}


def test_tied_and_vocabulary_size_from_the_tensors(tmp_path: Path) -> None:
    metadata = {k: v for k, v in METADATA.items() if k != "vocab_size"}
    files = open_model(write(tmp_path / "m.gguf", metadata, without("output.weight")))
    assert files.spec.tied_embeddings and files.spec.vocab_size == 48


def test_equal_lists_per_layer_are_one_value(tmp_path: Path) -> None:
    metadata = {**METADATA, "attention.head_count_kv": [2], "feed_forward_length": [64]}
    assert open_model(write(tmp_path / "m.gguf", metadata, tensors())).spec.layers[0].mlp == (
        open_model(write(tmp_path / "n.gguf", METADATA, tensors())).spec.layers[0].mlp
    )


FACTORS = np.array([1, 2, 4, 8], np.float32)


@pytest.mark.parametrize(
    ("changes", "weights", "kind", "named"),
    [
        ({"attention.softcap": 3.0}, {}, ErrorKind.UNSUPPORTED, "llama.attention.softcap"),
        ({"expert_count": 8}, {}, ErrorKind.MODEL_FILE, "num_experts_per_tok"),
        ({"rope.dimension_count": 5}, {}, ErrorKind.UNSUPPORTED, "rope.dimension_count"),
        ({"rope.dimension_count": 10}, {}, ErrorKind.UNSUPPORTED, "rope.dimension_count"),
        ({"attention.value_length": 16}, {}, ErrorKind.UNSUPPORTED, "value_length"),
        ({"rope.scaling.type": "ntk"}, {}, ErrorKind.UNSUPPORTED, "ntk"),
        ({"rope.scaling.type": "yarn"}, {}, ErrorKind.MODEL_FILE, "factor"),
        ({}, {"rope_factors_long.weight": FACTORS}, ErrorKind.MODEL_FILE, "rope_factors_short"),
        ({"feed_forward_length": [64, 65]}, {}, ErrorKind.UNSUPPORTED, "differs between layers"),
        ({"block_count": 2}, {}, ErrorKind.MODEL_FILE, r"layers\.1\."),
        ({"embedding_length": 64}, {}, ErrorKind.MODEL_FILE, "token_embd.weight"),
        (
            {"embedding_length": 64, "attention.key_length": 8},
            {},
            ErrorKind.MODEL_FILE,
            r"\[48, 32\].*\[48, 64\]",
        ),
        ({"context_length": 0}, {}, ErrorKind.MODEL_FILE, "max_position_embeddings"),
        ({"attention.head_count": 0}, {}, ErrorKind.MODEL_FILE, "num_attention_heads"),
        ({"vocab_size": 50}, {}, ErrorKind.MODEL_FILE, "token_embd.weight"),
        ({"rope.freq_base": float("nan")}, {}, ErrorKind.MODEL_FILE, "rope_theta"),
        ({}, {"rope_freqs.weight": FACTORS[:3]}, ErrorKind.MODEL_FILE, "rope_freqs.weight"),
        ({}, {"rope_freqs.weight": -FACTORS}, ErrorKind.MODEL_FILE, "rope_freqs.weight"),
        ({}, {"rope_freqs.weight": FACTORS * np.inf}, ErrorKind.MODEL_FILE, "rope_freqs.weight"),
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            {"rope_freqs.weight": FACTORS},
            ErrorKind.MODEL_FILE,
            "exclude",
        ),
        ({}, {"blk.0.attn_qkv.weight": FACTORS}, ErrorKind.MODEL_FILE, "attn_qkv"),
        ({}, {"blk.0.attn_q_norm.weight": FACTORS}, ErrorKind.MODEL_FILE, "attn_q_norm"),
        ({}, {"blk.0.attn_q.bias": FACTORS}, ErrorKind.MODEL_FILE, "attn"),
        ({}, {"v.patch_embd.weight": FACTORS}, ErrorKind.MODEL_FILE, "patch_embd"),
    ],
)
def test_wrong_files_are_named(
    changes: dict[str, Any],
    weights: dict[str, np.ndarray],
    kind: ErrorKind,
    named: str,
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "wrong.gguf", {**METADATA, **changes}, {**tensors(), **weights})
    with pytest.raises(TidemillError, match=named) as caught:
        open_model(path)
    assert caught.value.kind == kind
    assert "wrong.gguf" in caught.value.message


def test_other_types_are_named(tmp_path: Path) -> None:
    weights = tensors()
    weights["blk.0.attn_v.weight"] = weights["blk.0.attn_v.weight"].astype(np.float64)
    with pytest.raises(TidemillError, match=r"blk\.0\.attn_v\.weight' has type F64") as caught:
        open_model(write(tmp_path / "m.gguf", METADATA, weights))
    assert caught.value.kind == ErrorKind.UNSUPPORTED


def test_other_architectures_and_parts_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, tensors(), arch="mamba")
    with pytest.raises(TidemillError, match="mamba"):
        open_model(path)
    path = write(
        tmp_path / "b.gguf", METADATA, tensors(), extra=lambda w: w.add_uint16("split.count", 3)
    )
    with pytest.raises(TidemillError, match="one of 3 parts"):
        open_model(path)


@pytest.mark.parametrize(("tokens", "end", "named"), [(49, 4, "49 tokens"), (48, 48, "eos")])
def test_a_vocabulary_larger_than_the_embedding(
    tokens: int, end: int, named: str, tmp_path: Path
) -> None:
    def vocabulary(writer: Any) -> None:
        writer.add_token_list([f"t{i}" for i in range(tokens)])
        writer.add_token_types([1] * tokens)
        writer.add_eos_token_id(end)

    with pytest.raises(TidemillError, match=named):
        open_model(write(tmp_path / "m.gguf", METADATA, tensors(), extra=vocabulary))


def test_the_vocabulary_travels_as_it_is(tmp_path: Path) -> None:
    def vocabulary(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{i}" for i in range(46)] + ["<|im_end|>", "<|end|>"])
        writer.add_token_types([1] * 46 + [3, 1])
        writer.add_bos_token_id(3)
        writer.add_eos_token_id(4)
        writer.add_eot_token_id(5)
        writer.add_add_bos_token(True)
        writer.add_chat_template([{"name": "tool_use", "template": "tools"}])
        writer.add_chat_template("plain")

    files = open_model(write(tmp_path / "m.gguf", METADATA, tensors(), extra=vocabulary))
    assert (files.bos_token_id, files.eos_token_ids) == (3, (4, 5, 46))
    text = files.tokenizer
    assert text.gguf is not None and text.gguf["tokenizer.ggml.tokens"][45] == "t45"
    assert text.special["bos_token"] == "t3"
    assert (text.chat_template, text.named_templates) == ("plain", {"tool_use": "tools"})
    assert (text.add_bos, text.add_eos) == (True, None)


@pytest.mark.parametrize("value", [4294967295, -1])
def test_ids_that_say_there_is_no_token(value: int, tmp_path: Path) -> None:
    def extra(writer: Any) -> None:
        add = writer.add_int32 if value < 0 else writer.add_uint32
        for key in ("bos", "eos", "eot", "padding"):
            add(f"tokenizer.ggml.{key}_token_id", value)

    files = open_model(write(tmp_path / "m.gguf", METADATA, tensors(), extra=extra))
    assert files.bos_token_id is None and files.eos_token_ids == ()
