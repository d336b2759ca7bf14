"""Adapters as files: what is read, and what is refused by name."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.gguf_adapter import write_gguf_adapter
from helpers.tiny_adapter import (
    PREFIX,
    SHAPES,
    adapter_tensors,
    pair,
    write_adapter,
    write_prompt_adapter,
)
from helpers.tiny_folder import tensors, write_folder

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model
from tidemill.loading.adapters.source import open_adapter
from tidemill.loading.parts import ModelFiles

Q = "model.layers.0.self_attn.q_proj"
Q_A = f"{PREFIX}{Q}.lora_A.weight"


@pytest.fixture
def base(tmp_path: Path) -> ModelFiles:
    return open_model(write_folder(tmp_path / "base"))


def test_peft_and_gguf_files_of_one_adapter_say_the_same(base: ModelFiles, tmp_path: Path) -> None:
    first = open_adapter(write_adapter(tmp_path / "a"), base)
    second = open_adapter(write_gguf_adapter(tmp_path / "a.gguf"), base)
    assert set(first.tensors) == set(second.tensors) == {
        "layers.0.attn.q.weight", "layers.0.attn.k.weight", "layers.1.mlp.down.weight",
    }  # fmt: skip
    weights = tensors()
    for module in SHAPES:
        parts = module.split(".")
        kind = "attn" if parts[3] == "self_attn" else "mlp"
        name = f"layers.{parts[2]}.{kind}.{parts[4].removesuffix('_proj')}.weight"
        a, b = pair(module)
        stored = weights[module + ".weight"]
        wanted = stored + 1.5 * (b @ a)
        for adapter in (first, second):
            np.testing.assert_allclose(adapter.applied(name, stored), wanted, rtol=0, atol=1e-5)
    assert first.rank == 4 and len(first.digest) == 16 and first.digest != second.digest


def test_pickled_tensors(base: ModelFiles, tmp_path: Path) -> None:
    first = open_adapter(write_adapter(tmp_path / "a"), base)
    (tmp_path / "a" / "adapter_model.safetensors").unlink()
    stored = {name: torch.from_numpy(value) for name, value in adapter_tensors().items()}
    torch.save(stored, tmp_path / "a" / "adapter_model.bin")
    assert open_adapter(tmp_path / "a", base).digest == first.digest


def test_the_digest_names_values_and_settings(base: ModelFiles, tmp_path: Path) -> None:
    changed = adapter_tensors()
    changed[Q_A][0, 0] += 1
    digests = {
        open_adapter(write_adapter(tmp_path / name, weights, **settings), base).digest
        for name, weights, settings in (
            ("a", None, {}), ("b", changed, {}), ("c", None, {"lora_alpha": 7}),
        )
    }  # fmt: skip
    again = open_adapter(write_adapter(tmp_path / "d", lora_dropout=0.5), base)
    assert len(digests) == 3 and again.digest in digests


@pytest.mark.parametrize(
    ("settings", "param", "kind"),
    [
        ({"peft_type": "LOHA"}, "peft_type", ErrorKind.UNSUPPORTED),
        ({"layer_replication": [[0, 1]]}, "layer_replication", ErrorKind.UNSUPPORTED),
        ({"use_qalora": True}, "use_qalora", ErrorKind.UNSUPPORTED),
        ({"brand_new": 1}, "brand_new", ErrorKind.UNSUPPORTED),
        ({"init_lora_weights": "pissa"}, "init_lora_weights", ErrorKind.UNSUPPORTED),
        ({"r": 0}, "r", ErrorKind.MODEL_FILE),
        ({"r": 2**20}, "r", ErrorKind.MODEL_FILE),
        ({"r": True}, "r", ErrorKind.MODEL_FILE),
        ({"lora_alpha": "8"}, "lora_alpha", ErrorKind.MODEL_FILE),
        ({"use_rslora": 1}, "use_rslora", ErrorKind.MODEL_FILE),
        ({"rank_pattern": ["q"]}, "rank_pattern", ErrorKind.MODEL_FILE),
        ({"alpha_pattern": {"(a*)*b": 1}}, "alpha_pattern", ErrorKind.UNSUPPORTED),
        ({"alpha_pattern": {"(q": 1}}, "alpha_pattern", ErrorKind.MODEL_FILE),
        ({"use_dora": True}, Q.replace("q_", "k_"), ErrorKind.MODEL_FILE),
        ({"rank_pattern": {"q_proj": 5}}, Q, ErrorKind.MODEL_FILE),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens", ErrorKind.MODEL_FILE),
    ],
)
def test_settings_that_are_refused(
    settings: dict[str, Any], param: str, kind: ErrorKind, base: ModelFiles, tmp_path: Path
) -> None:
    with pytest.raises(TidemillError) as raised:
        open_adapter(write_adapter(tmp_path / "a", **settings), base)
    assert (raised.value.param, raised.value.kind) == (param, kind)


def _with(**changes: Any) -> dict[str, np.ndarray]:
    found: dict[str, Any] = {**adapter_tensors(), **changes}
    return {name: value for name, value in found.items() if value is not None}


_NAN = np.full((4, 32), np.nan, np.float32)
_ONES = np.ones((4, 32), np.float32)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (_with(**{Q_A: None}), "belong together"),
        (_with(**{Q_A: _NAN}), "NaN or infinity"),
        (_with(**{Q_A: np.ones((4, 31), np.float32)}), "has shape"),
        (_with(**{Q_A: np.ones((5, 32), np.float32)}), "its rank is 4"),
        (_with(**{Q_A: np.ones((4, 32), np.int32)}), "type I32"),
        (_with(**{Q_A: np.ones(128, np.float32)}), "matrices of shape"),
        (_with(**{"q_proj.lora_A.weight": _ONES}), "not one of a LoRA"),
        (_with(**{PREFIX + "model.layers.9.mlp.up_proj.weight": _ONES}), "no tensor"),
        (_with(**{PREFIX + "model.norm.weight": np.ones(31, np.float32)}), "has shape"),
        (_with(**{PREFIX + "model.norm.weight": np.full(32, np.inf, np.float32)}), "infinity"),
        (_with(**{PREFIX + Q + ".lora_C.weight": _ONES}), "not one of a LoRA"),
        (_with(**{PREFIX + Q + ".bias": np.ones(32, np.float32)}), "no tensor"),
        (
            _with(**{PREFIX + Q + ".lora_magnitude_vector": np.ones(31, np.float32)}),
            "use_dora is false",
        ),
        ({}, "holds no tensors"),
    ],
)
def test_tensors_that_are_refused(
    weights: dict[str, np.ndarray], text: str, base: ModelFiles, tmp_path: Path
) -> None:
    with pytest.raises(TidemillError, match=text):
        open_adapter(write_adapter(tmp_path / "a", weights), base)


_VECTORS = np.arange(96, dtype=np.float32).reshape(3, 32)


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "P_TUNING"])
def test_a_prompt_adapter_is_vectors(kind: str, base: ModelFiles, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"encoder_hidden_size": 8, "token_dim": None, "peft_type": kind}
    adapter = open_adapter(write_prompt_adapter(tmp_path / "a", _VECTORS, **settings), base)
    assert adapter.vectors is not None and (adapter.vectors == _VECTORS).all()
    assert not adapter.targets and len(adapter.digest) == 16
    other = open_adapter(write_prompt_adapter(tmp_path / "b", _VECTORS + 1, **settings), base)
    assert other.digest != adapter.digest


def test_a_prefix_is_keys_and_values(base: ModelFiles, tmp_path: Path) -> None:
    table = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
    settings = {"peft_type": "PREFIX_TUNING", "num_layers": 2, "num_attention_heads": 2}
    folder = write_prompt_adapter(tmp_path / "a", table, **settings, token_dim=16)
    prefix = open_adapter(folder, base).prefix
    assert prefix is not None and prefix.count == 3
    for layer in range(2):
        for i, found in enumerate((prefix.keys[layer], prefix.values[layer])):
            begin = 32 * layer + 16 * i
            assert (found == table[:, begin : begin + 16].reshape(3, 2, 8)).all()
    for wrong in ({"num_layers": 3}, {"num_attention_heads": 4}, {"token_dim": 32}):
        write_prompt_adapter(tmp_path / "a", table, **{**settings, "token_dim": 16, **wrong})
        with pytest.raises(TidemillError) as raised:
            open_adapter(folder, base)
        assert raised.value.param in wrong


def test_vectors_are_multiplied_where_transformers_multiplies_them(
    base: ModelFiles, tmp_path: Path
) -> None:
    folder = write_prompt_adapter(tmp_path / "a", _VECTORS)
    for family, factor in (("granite", 3.0), ("gemma", 1.0)):
        spec = replace(base.spec, family=family, embed_scale=3.0)
        found = open_adapter(folder, replace(base, spec=spec)).vectors
        assert found is not None and (found == factor * _VECTORS).all()
    with pytest.raises(TidemillError, match="without the scale of the embedding"):
        open_adapter(folder, replace(base, spec=replace(base.spec, family="falcon_h1")))


@pytest.mark.parametrize(
    ("vectors", "settings", "param"),
    [
        (_VECTORS, {"num_virtual_tokens": 4}, "prompt_embeddings"),
        (_VECTORS, {"num_virtual_tokens": True}, "num_virtual_tokens"),
        (_VECTORS, {"num_virtual_tokens": 2**20}, "num_virtual_tokens"),
        (_VECTORS, {"token_dim": 64}, "token_dim"),
        (_VECTORS, {"num_transformer_submodules": 2}, "num_transformer_submodules"),
        (_VECTORS, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
        (_VECTORS, {"brand_new": 1}, "brand_new"),
        (_VECTORS, {"tensor": "embeddings"}, "embeddings"),
        (_VECTORS[:, :16], {"token_dim": 32}, "prompt_embeddings"),
        (_VECTORS * np.float32(np.nan), {}, "prompt_embeddings"),
        (np.ones((3, 32), np.int32), {}, "prompt_embeddings"),
    ],
)
def test_prompt_adapters_that_are_refused(
    vectors: np.ndarray, settings: dict[str, Any], param: str, base: ModelFiles, tmp_path: Path
) -> None:
    with pytest.raises(TidemillError) as raised:
        open_adapter(write_prompt_adapter(tmp_path / "a", vectors, **settings), base)
    assert raised.value.param == param
    file = "adapter_model.safetensors" if param.endswith("embeddings") else "adapter_config.json"
    assert raised.value.message.startswith(file)


@pytest.mark.parametrize(
    ("key", "value"),
    [("general.type", "model"), ("adapter.type", "control_vector"), ("adapter.lora.alpha", "1")],
)
def test_gguf_keys_that_are_refused(key: str, value: Any, base: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(TidemillError) as raised:
        open_adapter(write_gguf_adapter(tmp_path / "a.gguf", **{key: value}), base)
    assert raised.value.param == key


def test_damaged_files_are_errors_alone(base: ModelFiles, tmp_path: Path) -> None:
    """Whatever bytes are changed: an adapter with finite values, or an error of ours."""
    folder, file = write_adapter(tmp_path / "a"), write_gguf_adapter(tmp_path / "a.gguf")
    rng = random.Random(5)
    for path in (folder / "adapter_model.safetensors", folder / "adapter_config.json", file):
        whole = path.read_bytes()
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(min(len(data), 1500))] = rng.randrange(256)
            path.write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
            try:
                adapter = open_adapter(file if path == file else folder, base)
            except TidemillError:
                continue
            assert all(np.isfinite(t.a).all() and t.rank <= 1024 for t in adapter.tensors.values())
        path.write_bytes(whole)
