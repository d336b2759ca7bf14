"""ModernBERT (Warner et al. 2024): an encoder with local attention in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidemill.base.errors import unsupported
from tidemill.models import tensors as names
from tidemill.models.config import MAX_LAYERS, MAX_POSITIONS, ConfigReader
from tidemill.models.dense import (
    LAYER_NORM,
    PLAIN_LAYER_NORM,
    Biases,
    Family,
    HeadPart,
    dense_spec,
    typed_windows,
)
from tidemill.models.naming import GATE_UP, QKV, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, Rope

_NAMES = {"rms_norm_eps": "norm_eps", "hidden_act": "hidden_activation"}
_UNUSED = (
    "gradient_checkpointing", "embedding_dropout", "mlp_dropout", "deterministic_flash_attn",
    "initializer_cutoff_factor", "cls_token_id", "decoder_bias", "sparse_prediction",
    "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "layer_norm_eps",
)  # fmt: skip
_GLOBAL_THETA, _LOCAL_THETA = 160000.0, 10000.0
_LAYER = "model.layers.{i}."

RULES: Rules = (
    ("model.embeddings.tok_embeddings.weight", names.EMBED),
    ("model.embeddings.norm.{t}", "embed_norm.{t}"),
    ("model.final_norm.{t}", "final_norm.{t}"),
    (_LAYER + "attn_norm.{t}", "layers.{i}.attn_norm.{t}"),
    (_LAYER + "attn.Wqkv.{t}", QKV),
    (_LAYER + "attn.Wo.{t}", "layers.{i}.attn.o.{t}"),
    (_LAYER + "mlp_norm.{t}", "layers.{i}.mlp_norm.{t}"),
    (_LAYER + "mlp.Wi.{t}", GATE_UP),
    (_LAYER + "mlp.Wo.{t}", "layers.{i}.mlp.down.{t}"),
    # Of checkpoints trained for masked language modelling.
    ("head.dense.{t}", None),
    ("head.norm.{t}", None),
    ("decoder.{t}", None),
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a ModernBERT config.

    Keys besides the common ones: hidden_activation, norm_eps, norm_bias, attention_bias, mlp_bias,
    layer_types (default: every global_attn_every_n_layers-th layer, 3, from the first on has full
    attention), local_attention (128: half of it to each side), global_rope_theta and
    local_rope_theta (160000 and 10000, where rope_parameters does not say).
    """
    kind = config.get("position_embedding_type")
    if kind not in (None, "absolute", "rope"):  # published configs say absolute but use rope
        raise unsupported(
            "position_embedding_type", f"positions of kind {kind!r} are not supported"
        )
    reader = ConfigReader(config, "modernbert", _NAMES)
    for key in (*_UNUSED, "position_embedding_type"):
        reader.raw(key)
    period = reader.integer("global_attn_every_n_layers", 3, high=MAX_LAYERS)
    half = reader.integer("local_attention", 128, low=2, high=MAX_POSITIONS) // 2
    count = reader.integer("num_hidden_layers", high=MAX_LAYERS)
    windows = typed_windows(reader, count, half + 1, lambda layer: layer % period != 0)
    attention = reader.boolean("attention_bias")
    thetas = {
        "full_attention": reader.number("global_rope_theta", _GLOBAL_THETA),
        "sliding_attention": reader.number("local_rope_theta", _LOCAL_THETA),
    }

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        of = {part: read_rope(reader, head_dim, part=part, theta=t) for part, t in thetas.items()}
        return [of["full_attention" if w is None else "sliding_attention"] for w in windows]

    plain = dense_spec(
        reader,
        "modernbert",
        biases=Biases(
            q=attention, k=attention, v=attention, o=attention, mlp=reader.boolean("mlp_bias")
        ),
        windows=lambda layers: windows,
        ropes=ropes,
        norm=LAYER_NORM if reader.boolean("norm_bias") else PLAIN_LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu",
        embed_norm=True,
        generates=False,
        causal=False,
    )
    first, *others = plain.layers  # its input is already normed after the embedding
    return replace(plain, layers=(replace(first, no_mixer_norm=True), *others))


FAMILY = Family(
    name="modernbert",
    architectures=(
        "ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification",
    ),
    spec=spec,
    rules=RULES,
    classifier=(
        HeadPart("head.dense", "gelu", norm="head.norm", activation_key="classifier_activation"),
        HeadPart("classifier", labels=True),
    ),
)  # fmt: skip
