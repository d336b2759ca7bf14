"""Weights that are parts of stored ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import packers
from helpers.family_cases import CASES, make_case
from safetensors.torch import load_file, save_file

from tidemill.loading import open_model
from tidemill.loading.schemes.base import SchemeWeight
from tidemill.loading.selected import Recent
from tidemill.models.quantization import to_float32


def test_recent_holds_the_last_result() -> None:
    made: list[object] = []

    def make(owner: list[int]) -> list[int]:
        made.append(owner)
        return list(owner)

    recent, first, same = Recent(), [1], [1]
    assert recent.get(first, make) is recent.get(first, make)
    assert made == [first]
    assert recent.get(same, make) == [1] and len(made) == 2  # equal, and another
    recent.get(first, make)
    recent.forget()
    recent.get(first, make)
    assert len(made) == 4


def test_heads_of_a_quantized_latent_matrix_are_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSeek keeps what makes keys and values of latents for all heads in one matrix."""
    make_case(next(c for c in CASES if c.prefix == "DeepseekV3"), tmp_path)
    stored: dict[str, torch.Tensor] = {}
    exact: dict[str, torch.Tensor] = {}
    for name, value in load_file(tmp_path / "model.safetensors").items():
        exact[name] = value
        if not name.endswith(".kv_b_proj.weight"):
            stored[name] = value
            continue
        parts, values = packers.int8_rows(value.float().numpy())
        exact[name] = torch.from_numpy(values)
        stored |= {name.removesuffix(".weight") + end: torch.as_tensor(parts[end]) for end in parts}
    config = json.loads((tmp_path / "config.json").read_text())
    eight = {"num_bits": 8, "type": "int", "symmetric": True}
    inputs = {**eight, "strategy": "token", "dynamic": True}
    group = {"weights": {**eight, "strategy": "channel"}, "input_activations": inputs}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "config_groups": {"a": group},
    }  # fmt: skip
    save_file(exact, tmp_path / "model.safetensors")
    expected = {n: to_float32(t) for n, t in open_model(tmp_path).tensors.items()}
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    calls: Counter[tuple[str, str]] = Counter()
    for method in ("values", "packed"):
        original = getattr(SchemeWeight, method)

        def counted(
            self: SchemeWeight, method: str = method, original: object = original
        ) -> object:
            calls[self.name, method] += 1
            return original(self)  # type: ignore[operator]

        monkeypatch.setattr(SchemeWeight, method, counted)
    tensors = open_model(tmp_path).tensors
    for kind in ("k_up", "v_up"):  # in the order in which they are packed
        for name in (n for n in tensors if f".{kind}." in n):
            np.testing.assert_array_equal(to_float32(tensors[name]), expected[name])
    assert len(calls) > 2 and set(calls.values()) == {1}
