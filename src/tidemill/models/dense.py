"""What dense pre-norm decoders have in common; a family file states its differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import MAX_LAYERS, MAX_POSITIONS, ConfigReader, read_rope
from tidemill.models.naming import Rules
from tidemill.models.spec import Attention, DecoderSpec, Layer, Mlp

MAX_HEADS = 4096
MAX_HEAD_DIM = 4096


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How a family appears in GGUF files.

    Attributes:
        arch: value of ``general.architecture``.
        rules: tensor names.
        permuted_qk: the converter interleaved the rows of Q and K for GGML's rope on neighbouring
            pairs; they are put back into rotate-half order.
        biases: config key -> tensor whose presence says true (GGUF has no key for it).
    """

    arch: str
    rules: Rules
    permuted_qk: bool = False
    biases: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """One family: names, the way from a config to a spec, tensor names.

    Attributes:
        name: as in ``DecoderSpec.family``.
        architectures: values of config.json's ``architectures``.
        spec: config -> spec; raises TidemillError naming the key that is wrong or not understood.
        rules: tensor names in Hugging Face checkpoints.
        gguf: None when GGUF files of the family go by another family's name.
    """

    name: str
    architectures: tuple[str, ...]
    spec: Callable[[Mapping[str, Any]], DecoderSpec]
    rules: Rules
    gguf: GgufFamily | None = None


@dataclass(frozen=True, slots=True)
class Biases:
    """Which projections have biases."""

    q: bool = False
    k: bool = False
    v: bool = False
    o: bool = False
    mlp: bool = False


def dense_spec(
    config: ConfigReader,
    family: str,
    *,
    biases: Biases = Biases(),
    qk_norm: bool = False,
    windows: Callable[[int], Sequence[int | None]] | None = None,
) -> DecoderSpec:
    """Read the common keys and build the spec.

    Args:
        config: the config; `finish` is called on it here.
        family: name of the family.
        biases, qk_norm: see `Attention` and `Mlp`.
        windows: number of layers -> each layer's sliding window; None for full attention
            everywhere.
    """
    config.must_be("hidden_act", "silu")
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    kv_heads = config.integer("num_key_value_heads", heads, high=MAX_HEADS)
    if heads % kv_heads:
        raise model_file_error(
            f"num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads})",
            param="num_key_value_heads",
        )
    head_dim = config.optional_integer("head_dim", high=MAX_HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise model_file_error(
                f"hidden_size ({hidden}) is no multiple of num_attention_heads ({heads}), and "
                "head_dim is not given",
                param="head_dim",
            )
        head_dim = hidden // heads
    if head_dim % 2:
        raise model_file_error(f"head_dim must be even, got {head_dim}", param="head_dim")
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    positions = config.integer("max_position_embeddings", high=MAX_POSITIONS)
    rope = read_rope(config, head_dim)
    mlp = Mlp(config.integer("intermediate_size"), bias=biases.mlp)
    layers = []
    for window in windows(count) if windows else [None] * count:
        # A window no shorter than the context hides nothing.
        kept = window if window is not None and window < positions else None
        attention = Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope=rope,
            q_bias=biases.q,
            k_bias=biases.k,
            v_bias=biases.v,
            o_bias=biases.o,
            qk_norm=qk_norm,
            window=kept,
        )
        layers.append(Layer(attention, mlp))
    spec = DecoderSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        max_positions=positions,
        layers=tuple(layers),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_embeddings=config.boolean("tie_word_embeddings"),
    )
    config.finish()
    return spec


def layer_windows(config: ConfigReader, layers: int) -> list[int | None]:
    """Qwen's windows: `layer_types` where given, else layers from `max_window_layers` on; only
    with `use_sliding_window`."""
    use = config.boolean("use_sliding_window")
    window = config.optional_integer("sliding_window", high=MAX_POSITIONS)
    first = config.integer("max_window_layers", layers, low=0, high=MAX_POSITIONS)
    window = window if use else None
    types = config.raw("layer_types")
    if types is None:
        return [window if i >= first else None for i in range(layers)]
    kinds = {"full_attention": None, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != layers:
        raise model_file_error(
            f"layer_types must list one entry for each of {layers} layers", param="layer_types"
        )
    for kind in types:
        if not isinstance(kind, str) or kind not in kinds:
            raise model_file_error(
                f"layer_types holds {kind!r}; known are {', '.join(kinds)}", param="layer_types"
            )
        if kind == "sliding_attention" and window is None:
            raise model_file_error(
                "layer_types names sliding_attention, but use_sliding_window or sliding_window "
                "switches it off",
                param="layer_types",
            )
    return [kinds[kind] for kind in types]
