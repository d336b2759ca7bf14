"""The benchmark's model maker: its GGUF files and its folders hold the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import make_model
from tidemill.loading import open_model
from tidemill.models.quantization import convert, to_float32
from tidemill.models.spec import inverse_frequencies

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize("shape", sorted(make_model.SHAPES))
@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q4_0"])
def test_folder_and_gguf_agree(
    shape: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, *rest = make_model.SHAPES[shape]
    monkeypatch.setitem(make_model.SHAPES, shape, ({**config, **SMALL}, *rest))
    folder, path = tmp_path / "folder", tmp_path / "model.gguf"
    make_model.make_folder(shape, folder, layers=2, tokenizer=False)
    make_model.make_gguf(folder, path, kind)
    first, second = open_model(folder), open_model(path)
    assert second.spec.weights_dtype == kind.upper()
    for name, tensor in first.tensors.items():
        other = second.tensors[name]
        if len(tensor.shape) == 1 or kind == "bf16":
            np.testing.assert_array_equal(to_float32(other), to_float32(tensor))
        else:
            assert bytes(other.data) == bytes(convert(tensor, kind.upper()).data)
    ropes = [f.spec.layers[0].mixer.rope for f in (first, second)]
    frequencies = [inverse_frequencies(rope) for rope in ropes if rope is not None]
    np.testing.assert_allclose(frequencies[0], frequencies[1], rtol=1e-6)


def test_real_shapes() -> None:
    counts = {
        name: make_model.family_for_config(config).spec(config).parameters()
        for name, (config, *_) in make_model.SHAPES.items()
    }
    assert counts == {"qwen3-0.6b": 596_049_920, "llama-3.2-1b": 1_235_814_400}
