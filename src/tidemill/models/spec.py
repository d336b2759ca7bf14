"""DecoderSpec: a decoder as data, in the field's standard terms. Executors run any spec.

A family (families/<name>.py) turns a checkpoint's config into a spec and names its tensors. No
family has a forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from tidemill.models import tensors as names
from tidemill.models.config import MAX_POSITIONS
from tidemill.models.foreign import Foreign
from tidemill.models.kv_types import vector_bytes
from tidemill.models.layers import (
    ACTIVATIONS,
    MAX_CONV_KERNEL,
    RMS,
    Attention,
    Latent,
    Layer,
    LayerInputs,
    Mlp,
    Moe,
    Norm,
    QkNorm,
    Recurrent,
)
from tidemill.models.rope import Reach, Rope, RopeScaling, inverse_frequencies, reach
from tidemill.models.shapes import inputs_shapes, layer_shapes, norm_shapes

__all__ = [
    "ACTIVATIONS", "MAX_CONV_KERNEL", "Attention", "CacheGroup", "DecoderSpec", "Latent", "Layer",
    "LayerInputs", "Mlp", "Moe", "Norm", "QkNorm", "Recurrent", "Rope", "RopeScaling",
    "inverse_frequencies",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table.

    Attributes:
        kind: ``full`` attention, or sliding ``window``.
        layers: their indices.
        window: tokens kept, for ``window``.
    """

    kind: str
    layers: tuple[int, ...]
    window: int | None = None


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer.

    Attributes:
        family: name of its family file.
        vocab_size, hidden_size, max_positions: sizes; max_positions is the trained context.
        layers: one entry per layer.
        norm_eps: epsilon of every norm.
        tied_embeddings: the output projection is the embedding.
        weights_dtype: most common stored type of float weights ("F32", "F16", "BF16", or a GGUF
            type).
        norm: kind of the layers' norms and the last one.
        learned_positions: a vector per position is added to the embedding.
        embed_norm: a norm follows the embedding.
        embed_scale: multiplies the embedding (before position vectors are added).
        residual_scale: multiplies each block's output before it is added.
        logit_scale: multiplies the logits.
        logit_softcap: logits l become softcap * tanh(l / softcap), after the scale.
        head_bias: the output projection has a bias.
        generates: it has an output projection; otherwise it only returns hidden states.
        causal: a token sees itself and earlier tokens; otherwise it sees its whole input.
        token_types: number of token type vectors, one of which is added to every embedding; 0 for
            none.
        last_norm: a norm follows the last layer.
        layer_inputs: see `LayerInputs`; None for none.
        foreign: for a model that no family supports, which has no layers here: see `Foreign`.
        ranks: processes that compute it together (docs/parallel.md). What they do not divide, each
            of them has: the sizes here are of all together.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    layers: tuple[Layer, ...]
    norm_eps: float
    tied_embeddings: bool
    weights_dtype: str = "BF16"
    norm: Norm = RMS
    learned_positions: bool = False
    embed_norm: bool = False
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False
    generates: bool = True
    causal: bool = True
    token_types: int = 0
    last_norm: bool = True
    layer_inputs: LayerInputs | None = None
    foreign: Foreign | None = None
    ranks: int = 1

    def attentions(self) -> dict[int, Attention]:
        """Layer -> its attention, for layers that have one."""
        mixers = enumerate(layer.attention for layer in self.layers)
        return {i: mixer for i, mixer in mixers if mixer is not None}

    @property
    def reach(self) -> Reach:
        """Context lengths with scaled ropes."""
        ropes = (mixer.rope for mixer in self.attentions().values())
        return reach(ropes, self.max_positions, MAX_POSITIONS)

    def cached(self) -> dict[int, Attention]:
        """Layer -> its attention, for layers with their own keys and values in the cache."""
        return {i: mixer for i, mixer in self.attentions().items() if mixer.kv_layer is None}

    def recurrences(self) -> dict[int, Recurrent]:
        """Layer -> its recurrent mixer, for layers that have one."""
        mixers = enumerate(layer.recurrent for layer in self.layers)
        return {i: mixer for i, mixer in mixers if mixer is not None}

    @property
    def state_bytes(self) -> int:
        """Bytes of one state of all recurrent layers; 0 without recurrent layers.

        A foreign model's state is the whole past of a sequence. One of a sequence's two states is
        always empty, so each counts half.
        """
        if self.foreign is not None:
            return max(1, -(-self.foreign.fixed_bytes // 2))
        return self.ranks * sum(4 * mixer.state_values for mixer in self.recurrences().values())

    def splits_heads(self, layer: int) -> bool:
        """Whether the ranks divide a layer's attention by KV heads; else each computes it all."""
        mixer = self.layers[layer].attention
        if mixer is None or mixer.latent is not None or mixer.kv_heads % self.ranks:
            return False
        if mixer.qk_norm is not None and mixer.qk_norm.scope == "full":
            return False  # a norm over all heads together
        return mixer.kv_layer is None or self.splits_heads(mixer.kv_layer)

    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups of the model, in the order of block tables.

        The single group of a model without attention, or of a foreign one, has no layers: its
        blocks count tokens and hold no data.
        """
        cached = self.cached()
        if not cached:
            return (CacheGroup("full", ()),)
        full: list[int] = []
        windows: dict[int, list[int]] = {}
        for i, mixer in cached.items():
            if mixer.window is None or not self.causal:  # an encoder caches its whole input
                full.append(i)
            else:
                windows.setdefault(mixer.window, []).append(i)
        groups = [CacheGroup("full", tuple(full))] if full else []
        groups += [CacheGroup("window", tuple(ls), w) for w, ls in sorted(windows.items())]
        return tuple(groups)

    def kv_bytes_per_token(self, kv_dtype: str, layers: Collection[int] | None = None) -> int:
        """Bytes of KV cache per token.

        Args:
            kv_dtype: ``float32``, ``bfloat16``, ``int8`` or ``int4`` (the latter two with scales).
                A foreign model has its own size. At least 1, even when nothing is cached per token.
            layers: over these layers; None: over all.
        """
        if self.foreign is not None:
            return max(1, self.foreign.token_bytes)
        total = sum(
            mixer.kv_heads
            * (1 if self.ranks == 1 or self.splits_heads(layer) else self.ranks)
            * (
                vector_bytes(kv_dtype, mixer.head_dim, key=True)
                + vector_bytes(kv_dtype, mixer.v_dim, key=False)
            )
            for layer, mixer in self.cached().items()
            if layers is None or layer in layers
        )
        return max(1, total)

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of exactly the tensors the model must have; empty for a foreign
        model."""
        if self.foreign is not None:
            return {}
        width = (self.hidden_size,)
        shapes: dict[str, tuple[int, ...]] = {names.EMBED: (self.vocab_size, self.hidden_size)}
        if self.learned_positions:
            shapes[names.POSITIONS] = (self.max_positions, self.hidden_size)
        if self.embed_norm:
            shapes |= norm_shapes("embed_norm", self.norm, width)
        if self.token_types:
            shapes[names.TYPES] = (self.token_types, self.hidden_size)
        if self.last_norm:
            shapes |= norm_shapes("final_norm", self.norm, width)
        if self.generates and not self.tied_embeddings:
            shapes[names.LM_HEAD] = (self.vocab_size, self.hidden_size)
        if self.generates and self.head_bias:
            shapes[names.LM_HEAD_BIAS] = (self.vocab_size,)
        inputs = self.layer_inputs
        if inputs is not None:
            shapes |= inputs_shapes(inputs, len(self.layers), self.hidden_size, self.norm)
        for i, layer in enumerate(self.layers):
            for tensor, shape in layer_shapes(layer, self.hidden_size, self.norm, inputs).items():
                shapes[names.layer_name(i, tensor)] = shape
        return shapes

    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.expected_tensors().values())
