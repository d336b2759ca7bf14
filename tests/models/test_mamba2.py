"""Mamba-2's config: its sizes, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.families.mamba2 import spec

CONFIG: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"], "chunk_size": 256, "conv_kernel": 4, "expand": 2,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 8192,
    "layer_norm_epsilon": 1e-05, "model_type": "mamba2", "n_groups": 8, "norm_before_gate": True,
    "num_heads": 128, "num_hidden_layers": 64, "rescale_prenorm_residual": False,
    "residual_in_fp32": True, "rms_norm": True, "state_size": 128, "tie_word_embeddings": False,
    "time_step_floor": 0.0001, "time_step_limit": [0.0, {"__float__": "Infinity"}],
    "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256, "use_bias": False,
    "use_conv_bias": True, "vocab_size": 32768,
}  # fmt: skip


def test_sizes() -> None:
    made = spec(CONFIG)
    assert 7.2e9 < made.parameters() < 7.4e9  # Codestral Mamba's 7.3 billion
    assert not made.attentions() and len(made.recurrences()) == 64
    assert [(g.kind, g.layers) for g in made.cache_groups()] == [("full", ())]
    assert made.kv_bytes_per_token("bfloat16") == 1  # blocks count tokens and hold nothing
    assert made.state_bytes == 64 * 4 * (3 * (8192 + 2 * 8 * 128) + 8192 * 128)
    assert made.max_positions == 2**20
    assert spec({**CONFIG, "max_position_embeddings": 4096}).max_positions == 4096


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"num_heads": 127}, "num_heads"),
        ({"intermediate_size": 8191}, "num_heads"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rms_norm": False}, "rms_norm"),
        ({"time_step_limit": [1.0, 0.0]}, "time_step_limit"),
        ({"n_groups": 3}, "n_groups"),
        ({"conv_kernel": 17}, "conv_kernel"),
        ({"attends_backwards": 3}, "attends_backwards"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(TidemillError) as raised:
        spec({**CONFIG, **changes})
    assert raised.value.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)
    assert raised.value.param == param
