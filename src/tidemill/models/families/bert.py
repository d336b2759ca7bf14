"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020): encoders.

Every token sees its whole input, norms are applied to the residual sums, and positions are learned.
BERT adds a token type vector to every token, which marks the first or second text of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, HeadPart, dense_spec
from tidemill.models.naming import Rules
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec

_NAMES = {"rms_norm_eps": "layer_norm_eps"}
_UNUSED = (
    "gradient_checkpointing", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "directionality",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    "pooler_type", "output_past", "position_embedding_type",
)  # fmt: skip
# The first two rows of RoBERTa's positions belong to padding.
_OFFSET = 2
_TYPES = 64


def _rules(prefix: str) -> Rules:
    layer, at = prefix + "encoder.layer.{i}.", "layers.{i}."
    embeddings = prefix + "embeddings."
    return (
        (embeddings + "word_embeddings.weight", names.EMBED),
        (embeddings + "position_embeddings.weight", names.POSITIONS),
        (embeddings + "token_type_embeddings.weight", names.TYPES),
        (embeddings + "LayerNorm.{t}", "embed_norm.{t}"),
        (embeddings + "position_ids", None),
        (embeddings + "token_type_ids", None),
        (layer + "attention.self.query.{t}", at + "attn.q.{t}"),
        (layer + "attention.self.key.{t}", at + "attn.k.{t}"),
        (layer + "attention.self.value.{t}", at + "attn.v.{t}"),
        (layer + "attention.output.dense.{t}", at + "attn.o.{t}"),
        (layer + "attention.output.LayerNorm.{t}", at + "attn_post_norm.{t}"),
        (layer + "intermediate.dense.{t}", at + "mlp.up.{t}"),
        (layer + "output.dense.{t}", at + "mlp.down.{t}"),
        (layer + "output.LayerNorm.{t}", at + "mlp_post_norm.{t}"),
        (prefix + "pooler.dense.{t}", None),
        # Of checkpoints trained for masked language modelling.
        ("cls.predictions.bias", None),
        ("cls.predictions.transform.dense.{t}", None),
        ("cls.predictions.transform.LayerNorm.{t}", None),
        ("cls.predictions.decoder.{t}", None),
        ("cls.seq_relationship.{t}", None),
        ("lm_head.dense.{t}", None),
        ("lm_head.layer_norm.{t}", None),
        ("lm_head.decoder.{t}", None),
        ("lm_head.bias", None),
    )


def _spec(config: Mapping[str, Any], family: str, offset: int) -> DecoderSpec:
    kind = config.get("position_embedding_type")
    if kind not in (None, "absolute"):
        raise unsupported(
            "position_embedding_type", f"positions of kind {kind!r} are not supported"
        )
    if config.get("is_decoder"):
        raise unsupported("is_decoder", "an encoder that is made a decoder is not supported")
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and not isinstance(positions, bool):
        if positions <= offset:
            raise model_file_error(
                f"max_position_embeddings must be above {offset}", param="max_position_embeddings"
            )
        config = {**config, "max_position_embeddings": positions - offset}
    if offset and config.get("pad_token_id", 1) != 1:
        raise unsupported("pad_token_id", "positions are counted from a padding token of id 1")
    reader = ConfigReader(config, family, _NAMES)
    for key in _UNUSED:
        reader.raw(key)
    types = reader.integer("type_vocab_size", 2, high=_TYPES)
    return dense_spec(
        reader,
        family,
        biases=Biases(q=True, k=True, v=True, o=True, mlp=True),
        ropes=lambda layers, dim: [None] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-12,
        activation="gelu",
        gated=False,
        layer={"pre_norm": False, "post_norm": True, "sum_norm": True},
        learned_positions=True,
        embed_norm=True,
        generates=False,
        causal=False,
        token_types=types,
        last_norm=False,
    )


def bert(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a BERT config.

    Keys besides the common ones: layer_norm_eps, type_vocab_size.
    """
    return _spec(config, "bert", 0)


def roberta(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a RoBERTa or XLM-R config. Its positions start after the padding token's id, 1."""
    return _spec(config, "roberta", _OFFSET)


FAMILY = Family(
    name="bert",
    architectures=("BertModel", "BertForMaskedLM", "BertForSequenceClassification"),
    spec=bert,
    rules=_rules("bert."),
    classifier=(HeadPart("bert.pooler.dense", "tanh"), HeadPart("classifier", labels=True)),
)
ROBERTA = Family(
    name="roberta",
    architectures=(
        *("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
        *("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
    ),
    spec=roberta,
    rules=_rules("roberta."),
    stored=Conventions(position_offset=_OFFSET),
    classifier=(HeadPart("classifier.dense", "tanh"), HeadPart("classifier.out_proj", labels=True)),
)
