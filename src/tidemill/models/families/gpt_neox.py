"""GPT-NeoX and Pythia (Black et al. 2022): parallel blocks with two norms, fused QKV by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_QKV, GROUPED_QKV, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec

_PARTIAL = 0.25
_NAMES = {
    "rms_norm_eps": "layer_norm_eps",
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
}

RULES: Rules = (
    ("gpt_neox.embed_in.weight", names.EMBED),
    ("embed_out.weight", names.LM_HEAD),
    ("gpt_neox.final_layer_norm.{t}", "final_norm.{t}"),
    ("gpt_neox.layers.{i}.input_layernorm.{t}", "layers.{i}.attn_norm.{t}"),
    ("gpt_neox.layers.{i}.post_attention_layernorm.{t}", "layers.{i}.mlp_norm.{t}"),
    ("gpt_neox.layers.{i}.attention.query_key_value.{t}", GROUPED_QKV),
    ("gpt_neox.layers.{i}.attention.dense.{t}", "layers.{i}.attn.o.{t}"),
    ("gpt_neox.layers.{i}.attention.bias", None),  # the causal mask, in early files
    ("gpt_neox.layers.{i}.attention.masked_bias", None),
    ("gpt_neox.layers.{i}.attention.rotary_emb.inv_freq", None),
    ("gpt_neox.layers.{i}.mlp.dense_h_to_4h.{t}", "layers.{i}.mlp.up.{t}"),
    ("gpt_neox.layers.{i}.mlp.dense_4h_to_h.{t}", "layers.{i}.mlp.down.{t}"),
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a GPT-NeoX config.

    Keys besides the common ones: layer_norm_eps, attention_bias (true where absent),
    use_parallel_residual (true where absent), rotary_pct (0.25), rotary_emb_base.
    """
    reader = ConfigReader(config, "gpt_neox", _NAMES)
    bias = reader.boolean("attention_bias", True)
    parallel = reader.boolean("use_parallel_residual", True)
    return dense_spec(
        reader,
        "gpt_neox",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=True),
        ropes=lambda layers, dim: [read_rope(reader, dim, partial=_PARTIAL)] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu",
        gated=False,
        layer={"parallel": parallel},
    )


FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="gptneox",
        rules=GGUF_QKV,
        biases={"attention_bias": "blk.0.attn_qkv.bias"},
        keys={"use_parallel_residual": "use_parallel_residual"},
        names=_NAMES,
    ),
)
