"""Llama 4's text decoder (Meta 2025): chunked attention in most layers, full attention without rope
in the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import MAX_LAYERS, MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Biases, Family, check_layer_types, dense_spec, read_top_k
from tidemill.models.gguf_family import EXPERTS, GgufFamily, GgufFile
from tidemill.models.naming import GGUF_EXPERTS, HF_RULES, Fused, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import Attention, DecoderSpec, Layer, Mlp, Moe, Norm, QkNorm, Rope

_THETA = 500000.0
_STORED, _EXPERT = "model.layers.{i}.feed_forward.", "layers.{i}.mlp.experts.{e}."

RULES: Rules = (
    (_STORED + "router.weight", "layers.{i}.mlp.router.weight"),
    (_STORED + "experts.gate_up_proj",
     Fused((_EXPERT + "gate.weight", _EXPERT + "up.weight"), transposed=True)),
    (_STORED + "experts.down_proj", Fused((_EXPERT + "down.weight",), transposed=True)),
    (_STORED + "shared_expert.{p}_proj.weight", "layers.{i}.mlp.shared.{p}.weight"),
    (_STORED + "{p}_proj.weight", "layers.{i}.mlp.{p}.weight"),
    *HF_RULES,
)  # fmt: skip


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Llama 4 text config.

    Keys besides the common ones: attention_bias, no_rope_layers (0 for layers without rope; absent
    or empty: every no_rope_layer_interval-th, 4), layer_types (else layers with rope are chunked),
    attention_chunk_size (8192), use_qk_norm (of layers with rope; true), attn_temperature_tuning,
    attn_scale and floor_scale (of the others; true, 0.1, 8192), intermediate_size (of experts),
    intermediate_size_mlp (of dense layers), num_local_experts, num_experts_per_tok (1), moe_layers,
    else interleave_moe_layer_step (1).
    """
    reader = ConfigReader({"num_experts_per_tok": 1, "head_dim": 128, **config}, "llama4")
    reader.must_be("router_jitter_noise", 0.0)
    reader.must_be("for_llm_compressor", False)
    bias = reader.boolean("attention_bias")
    count = reader.integer("num_hidden_layers", high=MAX_LAYERS)
    roped, sparse = _roped(reader, count), _sparse(reader, count)
    windows = _windows(reader, roped)
    norm = QkNorm(Norm(weight=False), after_rope=True)
    qk_norm = norm if reader.boolean("use_qk_norm", True) else None
    temperature = _attention_temperature(reader)
    experts, top_k = read_top_k(reader, "num_local_experts")
    width, dense = reader.integer("intermediate_size"), reader.integer("intermediate_size_mlp")

    def moe(act: str) -> list[Moe | None]:
        routed = Moe(
            experts, top_k, Mlp(width, act), "sigmoid_chosen", normalize=False, scale_inputs=True,
            shared=Mlp(width, act),
        )  # fmt: skip
        return [routed if i in sparse else None for i in range(count)]

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        rope = read_rope(reader, head_dim, theta=_THETA)
        return [rope if has else None for has in roped]

    plain = dense_spec(
        reader,
        "llama4",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        windows=lambda layers: windows,
        ropes=ropes,
        moe=moe,
        norm_eps=1e-5,
    )

    def layer(made: Layer) -> Layer:
        assert isinstance(made.mixer, Attention)
        mixer = replace(made.mixer, chunked=made.mixer.window is not None)
        if mixer.rope is None:
            mixer = replace(mixer, attention_temperature=temperature)
        else:
            mixer = replace(mixer, qk_norm=qk_norm)
        mlp = replace(made.mlp, intermediate=dense) if isinstance(made.mlp, Mlp) else made.mlp
        return replace(made, mixer=mixer, mlp=mlp)

    return replace(plain, layers=tuple(layer(made) for made in plain.layers))


def _roped(reader: ConfigReader, count: int) -> list[int]:
    """1 for each layer with rope."""
    interval = reader.integer("no_rope_layer_interval", 4)
    listed = reader.raw("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(listed, list) or len(listed) != count or set(listed) - {0, 1}:
        raise model_file_error(
            f"no_rope_layers must list 0 or 1 for each of {count} layers", param="no_rope_layers"
        )
    return listed


def _windows(reader: ConfigReader, roped: list[int]) -> list[int | None]:
    chunk = reader.optional_integer("attention_chunk_size", high=MAX_POSITIONS)
    types = reader.raw("layer_types")
    if types is None:
        return [chunk if has else None for has in roped]
    kinds = {"full_attention": None, "chunked_attention": chunk}
    check_layer_types(types, len(roped), kinds)
    if chunk is None and "chunked_attention" in types:
        raise model_file_error(
            "layer_types names chunked_attention, but attention_chunk_size is not given",
            param="layer_types",
        )
    return [kinds[kind] for kind in types]


def _sparse(reader: ConfigReader, count: int) -> set[int]:
    """Indices of layers with experts."""
    step = reader.integer("interleave_moe_layer_step", 1, high=MAX_LAYERS)
    listed = reader.raw("moe_layers")
    if listed is None:
        return set(range(step - 1, count, step))
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        raise model_file_error("moe_layers must list layers", param="moe_layers")
    return set(listed)


def _attention_temperature(reader: ConfigReader) -> tuple[float, float, int] | None:
    scale, floor = reader.number("attn_scale", 0.1), reader.number("floor_scale", 8192.0)
    on = reader.raw("attn_temperature_tuning")  # a number in published configs
    return (scale, floor, 1) if on is None or on else None


_CHUNK, _PLAIN_EXPERTS = 8192, 128


def _of_gguf(file: GgufFile) -> dict[str, Any]:
    """Values that files do not state: chunks and temperature tuning are the same in all published
    models, the largest of which has no norm of Q and K. A window of 0 means no chunks and no layers
    without rope."""
    layers = file.config.get("num_hidden_layers")
    found: dict[str, Any] = {"attention_chunk_size": _CHUNK}
    if file.keys.get(_WINDOW) == 0 and isinstance(layers, int) and 0 < layers <= MAX_LAYERS:
        found = {"attention_chunk_size": None, "no_rope_layers": [1] * layers}
    experts = file.config.get("num_local_experts")
    return {**found, "use_qk_norm": experts != _PLAIN_EXPERTS}


_WINDOW = "attention.sliding_window"
_STORED_PAIRS = Conventions(paired_rope=True)
FAMILY = Family(
    name="llama4",
    architectures=("Llama4ForCausalLM",),
    spec=spec,
    rules=RULES,
    stored=_STORED_PAIRS,
    gguf=GgufFamily(
        arch="llama4",
        rules=GGUF_EXPERTS,
        stored=_STORED_PAIRS,
        biases={"attention_bias": "blk.0.attn_q.bias"},
        keys={
            **EXPERTS,
            "expert_count": "num_local_experts",
            "expert_feed_forward_length": "intermediate_size",
            "feed_forward_length": "intermediate_size_mlp",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        unused=frozenset({_WINDOW}),
        implied=_of_gguf,
    ),
)
