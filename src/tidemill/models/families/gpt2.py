"""GPT-2 (Radford et al. 2019): learned positions, weights stored [in, out]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_QKV, QKV, Fused, Rules
from tidemill.models.spec import DecoderSpec

_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
_UNUSED = (
    "n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "attn_pdrop",
)  # fmt: skip


def _rules(prefix: str) -> Rules:
    layer = prefix + "h.{i}."
    return (
        (prefix + "wte.weight", names.EMBED),
        (prefix + "wpe.weight", names.POSITIONS),
        (prefix + "ln_f.{t}", "final_norm.{t}"),
        (layer + "ln_1.{t}", "layers.{i}.attn_norm.{t}"),
        (layer + "ln_2.{t}", "layers.{i}.mlp_norm.{t}"),
        (layer + "attn.c_attn.{t}", Fused(QKV.parts, transposed=True)),
        (layer + "attn.c_proj.{t}", Fused(("layers.{i}.attn.o.{t}",), transposed=True)),
        (layer + "attn.bias", None),  # the causal mask, in early files
        (layer + "attn.masked_bias", None),
        (layer + "mlp.c_fc.{t}", Fused(("layers.{i}.mlp.up.{t}",), transposed=True)),
        (layer + "mlp.c_proj.{t}", Fused(("layers.{i}.mlp.down.{t}",), transposed=True)),
    )


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a GPT-2 config.

    Keys: vocab_size, n_embd, n_head, n_layer, n_positions, n_inner (4 n_embd where absent),
    activation_function, layer_norm_epsilon, scale_attn_weights, tie_word_embeddings.
    """
    inner = config.get("n_inner") or 4 * ConfigReader(config, "gpt2", _NAMES).integer("hidden_size")
    reader = ConfigReader({**config, "n_inner": inner}, "gpt2", _NAMES)
    for key in _UNUSED:
        reader.raw(key)
    reader.must_be("scale_attn_by_inverse_layer_idx", False)
    reader.must_be("reorder_and_upcast_attn", False)
    scaled = reader.boolean("scale_attn_weights", True)
    return dense_spec(
        reader,
        "gpt2",
        biases=Biases(q=True, k=True, v=True, o=True, mlp=True),
        ropes=lambda layers, dim: [None] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu_new",
        gated=False,
        attention={} if scaled else {"scale": 1.0},
        tied=True,
        learned_positions=True,
    )


FAMILY = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    spec=spec,
    rules=(*_rules("transformer."), *_rules(""), ("lm_head.weight", names.LM_HEAD)),
    gguf=GgufFamily(arch="gpt2", rules=GGUF_QKV, names=_NAMES, rope=False),
)
