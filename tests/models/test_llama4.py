"""Llama 4's text config: which layers are what, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.families.llama4 import spec
from tidemill.models.spec import Attention, Mlp, Moe

# The text part of Llama 4 Maverick as published, with fewer layers.
CONFIG: dict[str, Any] = {
    "attention_bias": False, "attention_chunk_size": 8192, "attention_dropout": 0.0,
    "attn_scale": 0.1, "attn_temperature_tuning": 4, "floor_scale": 8192,
    "for_llm_compressor": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "max_position_embeddings": 1048576, "model_type": "llama4_text", "no_rope_layers": [],
    "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 8,
    "num_key_value_heads": 8, "num_local_experts": 128, "output_router_logits": False,
    "rms_norm_eps": 1e-05, "rope_scaling": {
        "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
    "tie_word_embeddings": False, "use_qk_norm": False, "vocab_size": 202048,
}  # fmt: skip


def mixers(**changes: Any) -> list[Attention]:
    found = [layer.mixer for layer in spec({**CONFIG, **changes}).layers]
    return [mixer for mixer in found if isinstance(mixer, Attention)]


def test_layers() -> None:
    layers = spec(CONFIG).layers
    attention = mixers()
    without = [i for i, mixer in enumerate(attention) if mixer.rope is None]
    assert without == [3, 7]
    assert [i for i, m in enumerate(attention) if m.window is None] == without
    assert all(m.chunked == (m.window == 8192) for m in attention)
    temperatures = [m.attention_temperature for m in attention]
    assert temperatures == [(0.1, 8192.0, 1) if i in without else None
                                             for i in range(8)]  # fmt: skip
    assert [i for i, layer in enumerate(layers) if isinstance(layer.mlp, Moe)] == [1, 3, 5, 7]
    dense = layers[0].mlp
    assert isinstance(dense, Mlp) and dense.intermediate == 16384
    assert all(m.qk_norm is None for m in attention)
    with_norm = mixers(use_qk_norm=True)
    assert [i for i, m in enumerate(with_norm) if m.qk_norm is None] == without


def test_kinds_of_layers_may_be_listed() -> None:
    types = ["chunked_attention", "full_attention"] * 4
    assert [m.window for m in mixers(layer_types=types)] == [8192, None] * 4
    assert [m.rope is None for m in mixers(no_rope_layers=[0, 1] * 4)] == [True, False] * 4
    assert all(m.attention_temperature is None for m in mixers(attn_temperature_tuning=False))
    layers = spec({**CONFIG, "moe_layers": [2]}).layers
    assert [i for i, layer in enumerate(layers) if isinstance(layer.mlp, Moe)] == [2]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"no_rope_layers": 3}, "no_rope_layers"),
        ({"layer_types": ["sliding_attention"] * 8}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 8, "attention_chunk_size": None}, "layer_types"),
        ({"moe_layers": "all"}, "moe_layers"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok"),
        ({"intermediate_size_mlp": None}, "intermediate_size_mlp"),
        ({"for_llm_compressor": True}, "for_llm_compressor"),
        ({"attn_scale": -1}, "attn_scale"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(TidemillError) as caught:
        spec({**CONFIG, **changes})
    assert caught.value.param == key
    assert caught.value.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)
