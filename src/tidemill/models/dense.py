"""The common reading of dense pre-norm decoders; a family file states its differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import MAX_LAYERS, MAX_POSITIONS, ConfigReader
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.layers import RMS
from tidemill.models.mtp import Mtp
from tidemill.models.naming import Rules
from tidemill.models.rope import reach
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import AS_NAMED, Conventions
from tidemill.models.spec import (
    Attention,
    DecoderSpec,
    Layer,
    Mlp,
    Moe,
    Norm,
    QkNorm,
    Recurrent,
    Rope,
)

MAX_HEADS = 4096
MAX_EXPERTS = 4096
MAX_HEAD_DIM = 4096


@dataclass(frozen=True, slots=True)
class HeadPart:
    """A layer of a classification head.

    Attributes:
        name: of its tensors.
        activation: one of head.HEAD_ACTIVATIONS, for a config without `activation_key`.
        norm: name of the layer norm after it; empty for none.
        labels: its width is the number of labels, not the model's.
    """

    name: str
    activation: str = "none"
    norm: str = ""
    labels: bool = False
    activation_key: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: its names, how its config becomes a spec, and its tensor names.

    Attributes:
        name: as in ``DecoderSpec.family``.
        architectures: values of config.json's ``architectures``.
        spec: config -> spec; raises TidemillError naming a wrong or unknown key.
        rules: tensor names in Hugging Face checkpoints.
        gguf: None when GGUF files of the family use another family's name.
        stored: how Hugging Face checkpoints differ from the order and meaning of our names.
        classifier: layers of its classification head, which reads the pooled vector.
        mtp: its layers that draft tokens, in Hugging Face checkpoints; None: it has none.
    """

    name: str
    architectures: tuple[str, ...]
    spec: Callable[[Mapping[str, Any]], DecoderSpec]
    rules: Rules
    gguf: GgufFamily | None = None
    stored: Conventions = AS_NAMED
    classifier: tuple[HeadPart, ...] = (HeadPart("score", labels=True),)
    mtp: Mtp | None = None


@dataclass(frozen=True, slots=True)
class Biases:
    """Which projections have biases."""

    q: bool = False
    k: bool = False
    v: bool = False
    o: bool = False
    mlp: bool = False


# config's name of an activation -> the spec's
ACTIVATION_NAMES = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
LAYER_NORM = Norm("layer", bias=True)
PLAIN_LAYER_NORM = Norm("layer")

Ropes = Callable[[int, int], Sequence[Rope | None]]


def read_activation(config: ConfigReader, default: str | None = None) -> str:
    """The spec's name of the config's `hidden_act`."""
    config.must_be("hidden_act", *ACTIVATION_NAMES)
    found = config.raw("hidden_act") or default
    if found is None:
        raise model_file_error(
            f"config key {config.name('hidden_act')!r} is missing", param=config.name("hidden_act")
        )
    return ACTIVATION_NAMES[found]


def read_heads(config: ConfigReader) -> tuple[int, int, int]:
    """The numbers heads, kv_heads and head_dim."""
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    kv_heads = config.integer("num_key_value_heads", heads, high=MAX_HEADS)
    if heads % kv_heads:
        raise model_file_error(
            f"{config.name('num_attention_heads')} ({heads}) is not a multiple of "
            f"{config.name('num_key_value_heads')} ({kv_heads})",
            param=config.name("num_key_value_heads"),
        )
    head_dim = config.optional_integer("head_dim", high=MAX_HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise model_file_error(
                f"{config.name('hidden_size')} ({hidden}) is not a multiple of "
                f"{config.name('num_attention_heads')} ({heads}), and head_dim is not given",
                param="head_dim",
            )
        head_dim = hidden // heads
    if head_dim % 2:
        raise model_file_error(f"head_dim must be even, got {head_dim}", param="head_dim")
    return heads, kv_heads, head_dim


def dense_spec(
    config: ConfigReader,
    family: str,
    *,
    biases: Biases = Biases(),
    qk_norm: QkNorm | None = None,
    windows: Callable[[int], Sequence[int | None]] | None = None,
    ropes: Ropes | None = None,
    norm: Norm = RMS,
    norm_eps: float = 1e-6,
    activation: str | None = "silu",
    gated: bool = True,
    moe: Callable[[str], Sequence[Moe | None]] | None = None,
    recurrences: Sequence[Recurrent | None] | None = None,
    intermediate: int | None = None,
    attention: Mapping[str, Any] | None = None,
    layer: Mapping[str, Any] | None = None,
    **model: Any,
) -> DecoderSpec:
    """Read the common keys and build the spec.

    Args:
        config: the config; `finish` is called on it here.
        family: name of the family.
        biases: see `Attention` and `Mlp`.
        qk_norm: see `Attention`.
        windows: number of layers -> each layer's sliding window; None for full attention
            everywhere.
        ropes: (number of layers, head_dim) -> each layer's rope; None for the config's everywhere.
        norm: kind of the layers' norms and the last one.
        norm_eps: the epsilon for a config without `rms_norm_eps`.
        activation: config's name of the activation for a config that names none.
        gated: see `Mlp`.
        moe: the spec's activation -> each layer's mixture of experts, None for a dense layer.
        recurrences: each layer's recurrent mixer, None for attention.
        intermediate: width of dense layers; None for the config's intermediate_size.
        attention, layer: further fields of `Attention` and `Layer`, the same for all layers.
        model: further fields of `DecoderSpec`.
    """
    act = read_activation(config, activation)
    heads, kv_heads, head_dim = read_heads(config)
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    positions = config.integer("max_position_embeddings", high=MAX_POSITIONS)
    rope_of = ropes(count, head_dim) if ropes else [read_rope(config, head_dim)] * count
    experts = moe(act) if moe else [None] * count
    config.raw("intermediate_size")
    if None in experts:
        width = intermediate or config.integer("intermediate_size")
        mlp = Mlp(width, act, biases.mlp, gated)
    longest = reach(rope_of, positions, MAX_POSITIONS).longest
    layers = []
    for i, window in enumerate(windows(count) if windows else [None] * count):
        # A window at least as long as the context hides nothing.
        kept = window if window is not None and window < longest else None
        mixer = Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope=rope_of[i],
            q_bias=biases.q,
            k_bias=biases.k,
            v_bias=biases.v,
            o_bias=biases.o,
            qk_norm=qk_norm,
            window=kept,
            **(attention or {}),
        )
        recurrent = recurrences[i] if recurrences else None
        layers.append(Layer(recurrent or mixer, experts[i] or mlp, **(layer or {})))
    tied = model.pop("tied", None)
    spec = DecoderSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        max_positions=positions,
        layers=tuple(layers),
        norm_eps=config.number("rms_norm_eps", norm_eps),
        tied_embeddings=config.boolean("tie_word_embeddings", bool(tied)),
        norm=norm,
        **model,
    )
    config.finish()
    return spec


def typed_windows(
    config: ConfigReader, layers: int, window: int | None, default: Callable[[int], bool]
) -> list[int | None]:
    """Windows from `layer_types`, or without that key from `default` (layer -> whether it
    slides)."""
    types = config.raw("layer_types")
    if types is None:
        return [window if default(i) else None for i in range(layers)]
    kinds = {"full_attention": None, "sliding_attention": window}
    check_layer_types(types, layers, kinds)
    if window is None and "sliding_attention" in types:
        raise model_file_error(
            "layer_types names sliding_attention, but sliding_window is not given",
            param="layer_types",
        )
    return [kinds[kind] for kind in types]


def check_layer_types(types: Any, layers: int, kinds: Mapping[str, object]) -> None:
    """MODEL_FILE unless `types` lists one of `kinds` for each layer."""
    if not isinstance(types, list) or len(types) != layers:
        raise model_file_error(
            f"layer_types must list one entry for each of {layers} layers", param="layer_types"
        )
    for kind in types:
        if not isinstance(kind, str) or kind not in kinds:
            raise model_file_error(
                f"layer_types holds {kind!r}; known are {', '.join(kinds)}", param="layer_types"
            )


def read_top_k(config: ConfigReader, experts_key: str) -> tuple[int, int]:
    """The number of experts, and the number of experts per token."""
    experts = config.integer(experts_key, high=MAX_EXPERTS)
    return experts, config.integer("num_experts_per_tok", high=experts)


def layer_windows(config: ConfigReader, layers: int) -> list[int | None]:
    """Qwen's windows: from `layer_types`, or else for layers from `max_window_layers` on. They
    apply only with `use_sliding_window`."""
    use = config.boolean("use_sliding_window")
    window = config.optional_integer("sliding_window", low=0, high=MAX_POSITIONS)
    first = config.integer("max_window_layers", layers, low=0, high=MAX_POSITIONS)
    window = window or None if use else None
    types = config.raw("layer_types")
    if types is None:
        return [window if i >= first else None for i in range(layers)]
    kinds = {"full_attention": None, "sliding_attention": window}
    check_layer_types(types, layers, kinds)
    for kind in types:
        if kind == "sliding_attention" and window is None:
            raise model_file_error(
                "layer_types names sliding_attention, but use_sliding_window or sliding_window "
                "switches it off",
                param="layer_types",
            )
    return [kinds[kind] for kind in types]
