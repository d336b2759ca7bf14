"""Falcon-H1's config: where its multipliers go, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.families.falcon_h1 import spec
from tidemill.models.spec import Mlp

CONFIG: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"], "attention_bias": False,
    "attention_in_multiplier": 0.5, "attention_out_multiplier": 0.9, "embedding_multiplier": 5.7,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 2048,
    "key_multiplier": 0.4, "lm_head_multiplier": 0.04, "mamba_chunk_size": 128,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_ssm": 1536,
    "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24,
    "mamba_norm_before_gate": False, "mamba_proj_bias": False, "mamba_rms_norm": False,
    "max_position_embeddings": 16384, "mlp_bias": False, "mlp_multipliers": [0.9, 0.6],
    "num_attention_heads": 8, "num_hidden_layers": 36, "num_key_value_heads": 2,
    "num_logits_to_keep": 1, "projectors_bias": False, "rms_norm_eps": 1e-05,
    "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.4, 0.3, 0.2, 0.5, 0.6], "ssm_out_multiplier": 0.2,
    "tie_word_embeddings": False, "vocab_size": 32784,
}  # fmt: skip


def test_multipliers() -> None:
    made = spec(CONFIG)
    layer = made.layers[0]
    assert layer.attention is not None and layer.parallel_mixer is not None
    assert layer.attention.score_scale == pytest.approx(64**-0.5 * 0.5**2 * 0.4)
    assert layer.mixer_scale == pytest.approx(0.5 * 0.9) and layer.parallel_scale == 0.2
    assert layer.parallel_mixer.scales == pytest.approx(
        [1.25 * n for n in (0.4, 0.3, 0.2, 0.5, 0.6)]
    )
    assert isinstance(layer.mlp, Mlp) and (layer.mlp.gate_scale, layer.mlp_scale) == (0.9, 0.6)
    assert (made.embed_scale, made.logit_scale) == (5.7, 0.04)


def test_the_mixers_norm_and_width() -> None:
    mixer = spec(CONFIG).layers[0].parallel_mixer
    assert mixer is not None and (mixer.inner, mixer.norm_groups) == (1536, 0)
    mixer = spec({**CONFIG, "mamba_rms_norm": True, "mamba_n_groups": 2}).layers[0].parallel_mixer
    assert mixer is not None and (mixer.norm_groups, mixer.gate_first) == (2, True)
    wide = {"mamba_d_ssm": None, "mamba_n_heads": 32, "mamba_norm_before_gate": True}
    mixer = spec({**CONFIG, **wide}).layers[0].parallel_mixer
    assert mixer is not None and (mixer.inner, mixer.gate_first) == (2048, False)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"attention_bias": True}, "attention_in_multiplier"),
        ({"mamba_proj_bias": True, "projectors_bias": True}, "ssm_in_multiplier"),
        ({"projectors_bias": True}, "projectors_bias"),
        ({"ssm_multipliers": [1.0] * 4}, "ssm_multipliers"),
        ({"mlp_multipliers": [1.0, "2"]}, "mlp_multipliers"),
        ({"mlp_multipliers": 1.0}, "mlp_multipliers"),
        ({"mamba_d_ssm": 1535}, "mamba_n_heads"),
        ({"layer_types": ["hybrid", "attention"]}, "layer_types"),
        ({"layer_types": 7}, "layer_types"),
        ({"attends_backwards": 3}, "attends_backwards"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(TidemillError) as raised:
        spec({**CONFIG, **changes})
    assert raised.value.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)
    assert raised.value.param == param
