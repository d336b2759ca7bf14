"""compressed-tensors' W8A8: int8 weights times int8 activations with a scale per token, as the
checkpoint says, against transformers whose linear layers round their inputs so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import packers
from helpers.backend_driver import BackendDriver, options
from helpers.references import prompt, reference_logits
from helpers.tiny_checkpoints import make_model, save
from safetensors.torch import load_file, save_file

from tidemill.backends import native
from tidemill.loading import open_model

_EIGHT = {"num_bits": 8, "type": "int", "symmetric": True}


def _section(inputs: dict[str, Any] | None) -> dict[str, Any]:
    weights = {**_EIGHT, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors", "format": "int-quantized",
        "config_groups": {"group_0": group},
    }  # fmt: skip


def _write(model: Any, folder: Path, inputs: dict[str, Any] | None) -> None:
    """The model's projections as int8, in the file and, dequantized, in the model."""
    save(model, folder)
    stored: dict[str, torch.Tensor] = {}
    parameters = dict(model.named_parameters())
    for name, value in load_file(folder / "model.safetensors").items():
        if "_proj.weight" not in name:
            stored[name] = value
            continue
        # Scales in float32 that float16 has not.
        parts, _ = packers.int8_rows(value.float().numpy())
        scale = parts[".weight_scale"].astype(np.float32) * np.float32(1.0001)
        stored[name] = torch.from_numpy(parts[".weight"])
        stored[name + "_scale"] = torch.from_numpy(scale)
        with torch.no_grad():
            parameters[name].copy_(stored[name].float() * stored[name + "_scale"])
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = _section(inputs)
    (folder / "config.json").write_text(json.dumps(config))


def _round_inputs(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
    (x,) = args
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (torch.round(x / scale.clamp_min(1e-30)) * scale,)


def _logits(folder: Path, tokens: list[int]) -> np.ndarray:
    files = open_model(folder)
    driver = BackendDriver(native.load(files.spec, files.tensors, options(dtype="float32")))
    try:
        return driver.all_logits(tokens, 7)
    finally:
        driver.backend.close()


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_activations_are_rounded_as_the_checkpoint_says(name: str, tmp_path: Path) -> None:
    # One layer: deeper, a value between two integers may fall either way and be carried on.
    model = make_model(name, num_hidden_layers=1)
    _write(model, tmp_path, {**_EIGHT, "strategy": "token", "dynamic": True})
    tokens = prompt(60)
    got = _logits(tmp_path, tokens)
    assert 1e-4 < _error(got, reference_logits(model, tokens)) < 1e-3
    for path, module in model.named_modules():
        if path.endswith("_proj"):
            module.register_forward_pre_hook(_round_inputs)
    assert _error(got, reference_logits(model, tokens)) < 1e-11


def _error(got: np.ndarray, expected: np.ndarray) -> float:
    """Mean squared difference over the variance."""
    return float(np.square(got - expected).mean() / expected.var())
