"""Layers that draft tokens (multi-token prediction, MTP), as checkpoints name them.

Such a layer joins the model's final hidden state at a position with the embedding of the token
behind it: x = join @ [norm(embedding), norm(state)]. A decoder layer of the model's own kind and a
norm follow; the model's output matrix scores the result, which is also the state for the position
behind (DeepSeek-AI 2024, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.models.layers import Attention
from tidemill.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Names of its tensors.

    Attributes:
        prefix: of all of them; ``{n}`` stands for the model's number of layers.
        block: of the decoder layer's, behind the prefix.
        layer: what the two stand for in names of a model's first layer.
        embedding_norm, hidden_norm, join, norm: behind the prefix.
        copies: of the model's embedding and output matrix, behind the prefix.
    """

    prefix: str
    block: str
    layer: str
    embedding_norm: str
    hidden_norm: str
    join: str
    norm: str
    copies: tuple[str, str] | None = None


BEHIND = MtpNames(
    prefix="model.layers.{n}.",
    block="",
    layer="model.layers.0.",
    embedding_norm="enorm.weight",
    hidden_norm="hnorm.weight",
    join="eh_proj.weight",
    norm="shared_head.norm.weight",
    copies=("embed_tokens.weight", "shared_head.head.weight"),
)
"""A layer behind the last one."""

APART = MtpNames(
    prefix="mtp.",
    block="layers.0.",
    layer="model.layers.0.",
    embedding_norm="pre_fc_norm_embedding.weight",
    hidden_norm="pre_fc_norm_hidden.weight",
    join="fc.weight",
    norm="norm.weight",
)
"""Qwen's."""


GGUF = MtpNames(
    prefix="blk.{n}.",
    block="",
    layer="blk.0.",
    embedding_norm="nextn.enorm.weight",
    hidden_norm="nextn.hnorm.weight",
    join="nextn.eh_proj.weight",
    norm="nextn.shared_head_norm.weight",
    copies=("nextn.embed_tokens.weight", "nextn.shared_head_head.weight"),
)
"""GGUF files'."""


@dataclass(frozen=True, slots=True)
class Mtp:
    """The MTP layers of a family.

    Attributes:
        names: of the first one's tensors. Further ones are trained to draft from the one before;
            the first drafts all tokens.
        layer_type: its decoder layer's entry in the config's `layer_types`; empty: there is no such
            key.
    """

    names: MtpNames
    layer_type: str = ""

    def spec(
        self, read: Callable[[Mapping[str, Any]], DecoderSpec], config: Mapping[str, Any]
    ) -> DecoderSpec:
        """The decoder layer as a model of one layer and one token, for states in place of
        embeddings.

        Args:
            read: the family's reading of a config.
            config: the model's.
        """
        count = config["num_hidden_layers"]
        more = {"num_hidden_layers": count + 1}
        if self.layer_type and config.get("layer_types") is not None:
            more["layer_types"] = [*config["layer_types"], self.layer_type]
        elif self.layer_type:
            more["layer_types"] = [self.layer_type] * (count + 1)
        whole = read({**config, **more})
        layer = whole.layers[count]
        assert isinstance(layer.mixer, Attention)
        return DecoderSpec(
            family=whole.family,
            vocab_size=1,
            hidden_size=whole.hidden_size,
            max_positions=whole.max_positions,
            layers=(layer,),
            norm_eps=whole.norm_eps,
            tied_embeddings=False,
            weights_dtype=whole.weights_dtype,
            norm=whole.norm,
            generates=False,
        )
