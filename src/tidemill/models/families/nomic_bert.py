"""nomic-bert (Nussbaum et al. 2024): BERT with rope and a gated feed-forward block, without biases.

Published checkpoints bring their own code (`auto_map`), which is never run; its arithmetic is
implemented here. Their config has GPT-2's keys, transformers' has BERT's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import unsupported
from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Family, dense_spec
from tidemill.models.naming import QKV, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, Rope

_TYPES = 64
_THETA = 1000.0
# The published config's keys -> transformers'.
_PUBLISHED = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers", "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}  # fmt: skip
# Further keys, and the only supported values; 0 stands for false and null.
_FIXED: dict[str, tuple[object, ...]] = {
    "activation_function": ("swiglu",), "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,), "rotary_emb_scale_base": (None,), "causal": (False,),
    "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,),
    "prenorm": (False,), "use_rms_norm": (False, None), "parallel_block": (False,),
    "num_experts": (0, None), "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
}  # fmt: skip
_UNUSED = (
    "auto_map", "attn_pdrop", "embd_pdrop", "resid_pdrop", "fused_bias_fc", "fused_dropout_add_ln",
    "use_flash_attn", "use_xentropy", "pad_vocab_size_multiple", "dense_seq_output",
    "last_layer_subset", "reorder_and_upcast_attn", "summary_activation", "summary_type",
    "summary_first_dropout", "summary_proj_to_labels", "summary_use_proj", "max_trained_positions",
    "n_positions", "rotary_scaling_factor", "parallel_block_tied_norm",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "default_theta",
)  # fmt: skip
_AT = "layers.{i}."


def _rules(prefix: str) -> Rules:
    mine, theirs = prefix + "layers.{i}.", prefix + "encoder.layers.{i}."
    embeddings = prefix + "embeddings."
    return (
        (embeddings + "word_embeddings.weight", names.EMBED),
        (embeddings + "token_type_embeddings.weight", names.TYPES),
        (embeddings + "LayerNorm.{t}", "embed_norm.{t}"),
        (prefix + "emb_ln.{t}", "embed_norm.{t}"),
        (mine + "self_attn.{p}_proj.weight", _AT + "attn.{p}.weight"),
        (mine + "post_attention_layernorm.{t}", _AT + "attn_post_norm.{t}"),
        (mine + "mlp.{p}_proj.weight", _AT + "mlp.{p}.weight"),
        (mine + "post_mlp_layernorm.{t}", _AT + "mlp_post_norm.{t}"),
        (theirs + "attn.Wqkv.{t}", QKV),
        (theirs + "attn.out_proj.weight", _AT + "attn.o.weight"),
        (theirs + "norm1.{t}", _AT + "attn_post_norm.{t}"),
        (theirs + "mlp.fc11.weight", _AT + "mlp.up.weight"),
        (theirs + "mlp.fc12.weight", _AT + "mlp.gate.weight"),
        (theirs + "mlp.fc2.weight", _AT + "mlp.down.weight"),
        (theirs + "norm2.{t}", _AT + "mlp_post_norm.{t}"),
        (prefix + "pooler.dense.{t}", None),
        # Of checkpoints trained for masked language modelling.
        ("cls.predictions.bias", None),
        ("cls.predictions.transform.dense.{t}", None),
        ("cls.predictions.transform.LayerNorm.{t}", None),
        ("cls.predictions.transform.layer_norm.{t}", None),
        ("cls.predictions.decoder.{t}", None),
    )


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a nomic-bert config.

    Keys besides the common ones, in either spelling: layer_norm_eps, type_vocab_size, rope_theta
    (1000). When the trained context (max_trained_positions) is shorter than n_positions, it is the
    context served; beyond it the published model scales its rope.
    """
    plain = {_PUBLISHED.get(k, k): v for k, v in config.items()}
    for key, values in _FIXED.items():
        if key in plain and plain[key] not in values:
            raise unsupported(
                key, f"config key {key!r} is {plain[key]!r}; nomic-bert has {values[0]!r}"
            )
        plain.pop(key, None)
    lengths = [config.get("n_positions"), config.get("max_trained_positions")]
    known = [n for n in lengths if isinstance(n, int) and not isinstance(n, bool)]
    if known:
        plain.setdefault("max_position_embeddings", min(known))
    plain = {k: v for k, v in plain.items() if k not in _UNUSED}
    reader = ConfigReader(plain, "nomic_bert", {"rms_norm_eps": "layer_norm_eps"})

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        return [read_rope(reader, head_dim, theta=_THETA)] * layers

    return dense_spec(
        reader,
        "nomic_bert",
        ropes=ropes,
        norm=LAYER_NORM,
        norm_eps=1e-12,
        layer={"pre_norm": False, "post_norm": True, "sum_norm": True},
        embed_norm=True,
        generates=False,
        causal=False,
        token_types=reader.integer("type_vocab_size", 2, high=_TYPES),
        last_norm=False,
    )


FAMILY = Family(
    name="nomic_bert",
    architectures=("NomicBertModel", "NomicBertForMaskedLM"),
    spec=spec,
    rules=(*_rules(""), *_rules("nomic_bert."), *_rules("bert.")),
)
