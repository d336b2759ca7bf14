"""What of a folder is neither a decoder's weight nor its config: heads, modules, templates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from convert.test_pipeline import llama
from helpers.tiny_folder import write_folder
from safetensors.numpy import load_file, save_file

from tidemill.convert.pipeline import Quantization, convert, quantize
from tidemill.loading import ModelFiles, open_model

KINDS = [None, "int8"]


def written(source: Path, out: Path, kind: str | None) -> ModelFiles:
    if kind is None:
        convert(source, out)
    else:
        text = "water over the mill " * 99 if kind.startswith("gptq") else None
        quantize(source, out, Quantization(kind), text)
    return open_model(out)


@pytest.mark.parametrize("kind", [*KINDS, "gptq-g32"])
def test_a_classifier_keeps_its_head(kind: str | None, tmp_path: Path) -> None:
    classes = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 3}
    source = llama(tmp_path / "m", **classes)
    weights = load_file(source / "model.safetensors")
    del weights["lm_head.weight"]
    score = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    save_file({**weights, "score.weight": score}, source / "model.safetensors")
    after = written(source, tmp_path / "out", kind)
    (layer,) = after.head()
    np.testing.assert_array_equal(layer.weight, score)
    assert after.vectors.labels == 3
    if kind == "int8":
        assert "score" in after.config["quantization_config"]["ignore"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_embedding_model_keeps_its_modules(kind: str | None, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "m", preprocessor_config__json={}, README__md="of its author")
    names = ("Transformer", "Pooling", "Dense")
    paths = ("", "1_Pooling", "2_Dense")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    settings = {
        "1_Pooling": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "2_Dense": {"in_features": 32, "out_features": 8, "bias": False,
                    "activation_function": "torch.nn.modules.activation.Tanh"},
    }  # fmt: skip
    for folder, content in settings.items():
        (source / folder).mkdir()
        (source / folder / "config.json").write_text(json.dumps(content))
    dense = np.random.default_rng(1).standard_normal((8, 32)).astype(np.float32)
    save_file({"linear.weight": dense}, source / "2_Dense" / "model.safetensors")
    before, after = open_model(source), written(source, tmp_path / "out", kind)
    assert after.vectors == before.vectors and after.vectors.pooling == "mean"
    np.testing.assert_array_equal(after.head()[0].weight, dense)
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()
    assert not (tmp_path / "out" / "README.md").exists()
