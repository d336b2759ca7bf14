"""Selects the type of every tensor in memory, and passes the tensors to the core."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import BackendOptions, PackedWeights
from tidemill.backends.native import _core
from tidemill.backends.native.fields import copy_fields
from tidemill.backends.native.layout import (
    ROW_TABLES,
    WEIGHT_TYPES,
    packed_matrices,
    packed_type,
    read_in_file,
)
from tidemill.backends.native.packing import Matrix, as_bytes
from tidemill.base.errors import ErrorKind, TidemillError, model_file_error, unsupported
from tidemill.base.free_memory import free_memory
from tidemill.models import tensors as names
from tidemill.models.quantization import FLOAT_TYPES
from tidemill.models.shapes import APART_NORMS
from tidemill.models.spec import (
    ACTIVATIONS,
    MAX_CONV_KERNEL,
    Attention,
    DecoderSpec,
    Latent,
    LayerInputs,
    Mlp,
    Moe,
    Norm,
    Recurrent,
    Rope,
    inverse_frequencies,
)
from tidemill.models.tensors import (
    TensorMap,
    expected_nbytes,
    layer_name,
)

# Codes of csrc/kernels/kernels.h.
KV_TYPES = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}

QK_SCOPES = ("head", "heads", "full")
_RULES = ("delta", "ssd")
SCORINGS = ("softmax", "sigmoid", "softmax_chosen", "sparse_mixer", "sigmoid_chosen")


def check_spec(spec: DecoderSpec) -> None:
    """Raise TidemillError UNSUPPORTED, naming the feature, for a spec the core does not run."""
    for i, layer in enumerate(spec.layers):
        mlp = layer.mlp.expert if isinstance(layer.mlp, Moe) else layer.mlp
        if layer.parallel and (layer.mixer is None or mlp is None):
            raise unsupported("layers", f"layer {i}: parallel blocks need a mixer and an MLP")
        if mlp is not None and (
            mlp.activation not in ACTIVATIONS
            or (mlp.activation == "swiglu_clamped" and not mlp.gated)
        ):
            raise unsupported(
                "activation", f"layer {i}: the native backend does not know {mlp.activation!r} here"
            )
        if layer.recurrent is not None:
            _check_recurrent(i, layer.recurrent)
        if layer.parallel_mixer is not None and (layer.parallel or layer.post_norm):
            raise unsupported("layers", f"layer {i}: parallel mixers cannot have post norms")
        mixer = layer.attention
        if mixer is None:
            continue
        if mixer.head_dim % 2 or mixer.heads % mixer.kv_heads:
            raise unsupported(
                "head_dim",
                f"layer {i}: the native backend needs an even head_dim and heads that are a "
                f"multiple of kv_heads; got head_dim {mixer.head_dim}, heads {mixer.heads}, "
                f"kv_heads {mixer.kv_heads}",
            )
        if mixer.rope is not None and (mixer.rope.dim % 2 or mixer.rope.dim > mixer.head_dim):
            raise unsupported(
                "rope.dim",
                f"layer {i}: rope over {mixer.rope.dim} of {mixer.head_dim} dimensions is not "
                "supported by the native backend",
            )


def _check_recurrent(layer: int, mixer: Recurrent) -> None:
    if mixer.rule not in _RULES or not 1 <= mixer.conv_kernel <= MAX_CONV_KERNEL:
        raise unsupported(
            "recurrent",
            f"layer {layer}: the native backend knows the rules {', '.join(_RULES)} and "
            f"convolutions of at most {MAX_CONV_KERNEL} tokens; got {mixer.rule!r} "
            f"and {mixer.conv_kernel}",
        )
    if mixer.value_heads % mixer.key_heads or mixer.inner % max(1, mixer.norm_groups):
        raise unsupported(
            "recurrent",
            f"layer {layer}: value heads must be a multiple of key heads, and the output one of "
            "its norm's parts",
        )


def check_tensors(spec: DecoderSpec, tensors: TensorMap) -> None:
    """Raise TidemillError MODEL_FILE unless the tensors are exactly the expected ones and
    complete."""
    expected = spec.expected_tensors()
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected)
    if missing or extra:
        what = f"misses {missing[0]}" if missing else f"has the unexpected {extra[0]}"
        raise model_file_error(f"the model {what}", param=(missing or extra)[0])
    for name, shape in expected.items():
        tensor = tensors[name]
        if tensor.dtype not in WEIGHT_TYPES:
            raise unsupported(name, f"{name}: the native backend does not read {tensor.dtype}")
        if tensor.shape != shape:
            raise model_file_error(
                f"{name} has shape {list(tensor.shape)}, the config needs {list(shape)}", param=name
            )
        try:
            need = expected_nbytes(tensor.dtype, shape)
        except ValueError as error:
            raise model_file_error(f"{name}: {error}", param=name) from error
        if tensor.nbytes != need:
            raise model_file_error(
                f"{name} has {tensor.nbytes} bytes, its type and shape need {need}: the file is "
                "damaged or truncated",
                param=name,
            )


def _check_memory(need: int) -> None:
    available = free_memory()
    if need > available:
        raise TidemillError(
            ErrorKind.RESOURCE,
            f"the weights need {need / 2**30:.1f} GiB and {available / 2**30:.1f} GiB of "
            "memory are free: use --quantize int8, q8_0 or q4_0, or a smaller model",
            param="quantize",
        )


class ModelBuilder:
    """Describes a model to a core Executor and reserves memory for each of its matrices.

    After `build`, two attributes hold the arrays that the core reads in place and that must outlive
    it: `rows` the file's own embeddings, `kept` the packed matrices of an earlier start, if they
    were found. `unpacked` are the matrices that still have to be packed, in the order a step needs
    them. `matrices` and `vectors` have the core's ids by canonical name.
    """

    def __init__(
        self,
        core: _core.Executor,
        spec: DecoderSpec,
        tensors: TensorMap,
        options: BackendOptions,
        packed: PackedWeights | None = None,
    ) -> None:
        self._core = core
        self._spec = spec
        self._tensors = tensors
        self._options = options
        self._packed = packed
        self._layout = ""
        self._first_layer = 0
        self._ropes: dict[Rope, int] = {}
        self._constants: dict[tuple[float, ...], int] = {}
        # Embeddings whose rows are read from the file.
        self._sources = {name: np.zeros(0, np.uint8) for name in ROW_TABLES}
        self.rows: tuple[NDArray[np.uint8], ...] = ()
        self.kept: NDArray[np.uint8] | None = None
        self.unpacked: list[Matrix] = []
        self.matrices: dict[str, int] = {}
        self.vectors: dict[str, int] = {}

    def build(self) -> None:
        """Reserve the memory of all matrices, read the vectors and describe the layers.

        Raises TidemillError RESOURCE when memory is insufficient.
        """
        self._layout = self._reserve_or_map()
        config = _core.ModelConfig()
        spec, options = self._spec, self._options
        copy_fields(spec, config)
        config.vocab, config.hidden = spec.vocab_size, spec.hidden_size
        config.max_positions = options.max_positions  # as far as this process serves
        config.kv_type = KV_TYPES[options.kv_dtype]
        config.block_size = options.block_size
        if options.shard is not None:
            config.rank = options.shard.rank  # `ranks` is the spec's
        layers = range(len(spec.layers))
        if (stage := options.stage) is not None:
            config.stage, config.stages, layers = stage.index, stage.stages, stage.layers
        self._first_layer = layers.start
        groups = spec.cache_groups()
        config.layer_norms = spec.norm.kind == "layer"
        config.group_windows = [group.window or 0 for group in groups]
        # Matrices are laid out and packed in the order in which a step uses them.
        if stage is None or stage.index == 0:
            self._inputs(config)
        group_of = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        config.layers = [self._layer(i, group_of) for i in layers]
        context = options.max_positions
        config.ropes = [inverse_frequencies(rope, context) for rope in self._ropes]
        config.rope_scales = [rope.attention_factor for rope in self._ropes]
        config.norm_sums = bool(spec.layers) and spec.layers[0].sum_norm
        if stage is None or stage.index == 0:
            self._outputs(config)
        self._core.build(config, self._sources[names.EMBED], self._sources[names.LAYER_INPUTS])

    def _inputs(self, config: _core.ModelConfig) -> None:
        spec = self._spec
        config.embedding_type = WEIGHT_TYPES[self._tensors[names.EMBED].dtype]
        config.embedding = self._embedding(names.EMBED)
        if spec.learned_positions:
            config.positions = self._matrix(names.POSITIONS)
        if spec.token_types:
            config.types = self._matrix(names.TYPES)
        if spec.layer_inputs is not None:
            config.inputs = self._layer_inputs(spec.layer_inputs)
        if spec.embed_norm:
            config.embed_norm = self._norm("embed_norm", spec.norm, spec.hidden_size)

    def _outputs(self, config: _core.ModelConfig) -> None:
        spec = self._spec
        if spec.last_norm:
            config.final_norm = self._norm("final_norm", spec.norm, spec.hidden_size)
        if spec.generates:
            tied = spec.tied_embeddings
            config.lm_head = _core.LinearConfig()
            config.lm_head.weight = config.embedding if tied else self._matrix(names.LM_HEAD)
            if spec.head_bias:
                config.lm_head.bias = self._vector(names.LM_HEAD_BIAS)

    def keep(self) -> None:
        """Store the packed matrices for the next start. All must be packed."""
        if self._packed is not None and self.kept is None:
            data = self._core.packed()
            self._packed.keep(self._layout, data, lambda data: _core.checksum(data, 1))

    def _embedding(self, name: str) -> int:
        """Id of the packed matrix; -1 when rows are read from the file's own bytes, because a step
        reads only a few of them."""
        if not read_in_file(name, self._tensors[name], self._spec, self._options.quantize):
            return self._matrix(name)
        self._sources[name] = as_bytes(self._tensors[name])
        self.rows += (self._sources[name],)
        return -1

    def _layer_inputs(self, inputs: LayerInputs) -> _core.LayerInputsConfig:
        config = _core.LayerInputsConfig()
        copy_fields(inputs, config)
        config.activation = ACTIVATIONS.index(inputs.activation)
        config.embedding_type = WEIGHT_TYPES[self._tensors[names.LAYER_INPUTS].dtype]
        config.embedding = self._embedding(names.LAYER_INPUTS)
        config.projection = self._linear("layer_inputs.projection")
        config.norm = self._norm("layer_inputs.norm", self._spec.norm, inputs.width)
        return config

    def _reserve_or_map(self) -> str:
        """Reserve memory for the matrices, or map the packed ones stored earlier; returns their
        layout."""
        # This module decides the order of the matrices, and the core's build id does not cover it.
        order = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=8).hexdigest()
        layout = [f"{self._core.isa} {self._options.dtype} {order}"]
        if (shard := self._options.shard) is not None:
            layout.append(f"rank {shard.rank} of {shard.ranks}")
        if (stage := self._options.stage) is not None:
            layout.append(f"layers {stage.layers[0]} to {stage.layers[-1]}")
        total = 0
        size = self._core.matrix_bytes
        for name, target, nbytes in packed_matrices(self._tensors, self._spec, self._options, size):
            layout.append(f"{name} {target} {list(self._tensors[name].shape)}")
            total += nbytes
        _check_memory(total)
        text = "\n".join(layout)
        if self._packed is not None:
            threads = self._options.threads
            self.kept = self._packed.find(text, total, lambda data: _core.checksum(data, threads))
        if self.kept is None:
            self._core.reserve(total)
        else:
            self._core.adopt(self.kept)
        return text

    def _matrix(self, name: str) -> int:
        tensor = self._tensors[name]
        target = WEIGHT_TYPES[packed_type(name, tensor, self._options)]
        if self.kept is None:
            self.unpacked.append(Matrix(name, tensor, WEIGHT_TYPES[tensor.dtype]))
        self.matrices[name] = self._core.add_matrix(name, target, *tensor.shape)
        return self.matrices[name]

    def _vector(self, name: str) -> int:
        tensor = self._tensors[name]
        if tensor.dtype not in FLOAT_TYPES:
            raise unsupported(name, f"{name}: a vector must be float, not {tensor.dtype}")
        (count,) = tensor.shape
        data = as_bytes(tensor)
        self.vectors[name] = self._core.add_vector(name, WEIGHT_TYPES[tensor.dtype], count, data)
        return self.vectors[name]

    def _constant(self, values: tuple[float, ...]) -> int:
        """A vector that is in no file, added once."""
        if values not in self._constants:
            array = np.array(values, np.float32)
            self._constants[values] = self._core.add_vector(
                "constant", WEIGHT_TYPES["F32"], len(values), array.view(np.uint8)
            )
        return self._constants[values]

    def _norm(self, name: str, norm: Norm, width: int) -> _core.NormConfig:
        config = _core.NormConfig()
        config.weight = (
            self._vector(f"{name}.weight") if norm.weight else self._constant((1.0,) * width)
        )
        if norm.bias:
            config.bias = self._vector(f"{name}.bias")
        return config

    def _linear(self, name: str) -> _core.LinearConfig:
        config = _core.LinearConfig()
        config.weight = self._matrix(f"{name}.weight")
        if f"{name}.bias" in self._tensors:
            config.bias = self._vector(f"{name}.bias")
        return config

    def _layer(self, index: int, group_of: Mapping[int, int]) -> _core.LayerConfig:
        layer = self._spec.layers[index]
        config = _core.LayerConfig()
        copy_fields(layer, config)
        blocks = {"attn": layer.mixer, "mlp": layer.mlp}
        for part in (part for part, block in blocks.items() if block is not None):
            present = {
                "norm": layer.has_norm(part),
                "post_norm": layer.post_norm,
            }
            for kind, there in present.items():
                if there:
                    name = layer_name(index, f"{part}_{kind}")
                    norm = self._norm(name, self._spec.norm, self._spec.hidden_size)
                    setattr(config, f"{part}_{kind}", norm)
        if layer.recurrent is not None:
            config.recurrent = self._recurrent(layer_name(index, "rec"), layer.recurrent)
        if (attention := layer.attention) is not None:
            source = index if attention.kv_layer is None else attention.kv_layer
            config.cache_group = group_of[source]
            self._attention(index, attention, config)
        if isinstance(layer.mlp, Moe):
            config.moe = self._experts(layer_name(index, "mlp"), layer.mlp)
        elif layer.mlp is not None:
            config.mlp = self._feed_forward(layer_name(index, "mlp"), layer.mlp)
        if self._spec.layer_inputs is not None:
            for part in ("gate", "out"):
                linear = self._linear(layer_name(index, f"inputs.{part}"))
                setattr(config, f"input_{part}", linear)
            name, width = layer_name(index, "inputs_post_norm"), self._spec.hidden_size
            config.input_post = self._norm(name, self._spec.norm, width)
        if layer.scaled:
            config.scale_id = self._vector(layer_name(index, "scale"))
        return config

    def _attention(self, index: int, mixer: Attention, config: _core.LayerConfig) -> None:
        copy_fields(mixer, config)
        if mixer.kv_layer is not None:
            config.kv_layer = mixer.kv_layer - self._first_layer
        config.scale = mixer.score_scale
        if mixer.attention_temperature is not None:
            (
                config.temperature_scale,
                config.temperature_floor,
                config.temperature_shift,
            ) = mixer.attention_temperature
        if mixer.rope is not None:
            config.rope = self._ropes.setdefault(mixer.rope, len(self._ropes))
        if mixer.slopes:
            config.slopes = self._constant(mixer.slopes)
        if mixer.sinks:
            config.sinks = self._vector(layer_name(index, "attn.sinks"))
        for part in ("q", "k", "v", "o"):
            name = layer_name(index, f"attn.{part}")
            if f"{name}.weight" in self._tensors:
                setattr(config, part, self._linear(name))
        if mixer.v_norm and mixer.kv_layer is None:
            config.v_norm = self._norm("", Norm(weight=False), mixer.head_dim)
        if mixer.gated:
            config.gate = self._linear(layer_name(index, "attn.gate"))
        if mixer.latent is not None:
            config.latent = self._latent(layer_name(index, "attn"), mixer, mixer.latent)
        qk = mixer.qk_norm
        if qk is None:
            return
        config.qk_scope, config.qk_after_rope = QK_SCOPES.index(qk.scope), qk.after_rope
        config.qk_layer_norm = qk.norm.kind == "layer"
        normed = (("q", mixer.heads), ("k", mixer.kv_heads))
        for part, heads in normed if mixer.kv_layer is None else normed[:1]:
            width = mixer.head_dim * (1 if qk.scope == "head" else heads)
            norm = self._norm(layer_name(index, f"attn.{part}_norm"), qk.norm, width)
            setattr(config, f"{part}_norm", norm)

    def _recurrent(self, name: str, mixer: Recurrent) -> _core.RecurrentConfig:
        config = _core.RecurrentConfig()
        copy_fields(mixer, config)
        config.delta = mixer.rule == "delta"
        config.time_min, config.time_max = mixer.time_limits
        (config.z_scale, config.x_scale, config.b_scale, config.c_scale,
         config.a_scale) = mixer.scales  # fmt: skip
        for part in ("qkv", "z", "a", "out"):
            setattr(config, part, self._linear(f"{name}.{part}"))
        if config.delta:
            config.b = self._linear(f"{name}.b")
        vectors = {
            "conv": "conv.weight", "conv_bias": "conv.bias", "a_log": "a_log", "a_bias": "a_bias",
            "skip": "skip", "norm": "norm.weight",
        }  # fmt: skip
        for part, tensor in vectors.items():
            if f"{name}.{tensor}" in self._tensors:
                setattr(config, part, self._vector(f"{name}.{tensor}"))
        return config

    def _latent(self, name: str, mixer: Attention, latent: Latent) -> _core.LatentConfig:
        config = _core.LatentConfig()
        copy_fields(latent, config)
        if latent.q_rank is not None:
            config.q_down = self._linear(f"{name}.q_down")
            config.q_norm = self._norm(f"{name}.q_down_norm", Norm(), latent.q_rank)
        config.kv_down = self._linear(f"{name}.kv_down")
        config.kv_norm = self._norm(f"{name}.kv_down_norm", Norm(), latent.rank)
        heads = range(mixer.heads)
        config.k_up = [self._linear(f"{name}.k_up.{head}") for head in heads]
        config.v_up = [self._linear(f"{name}.v_up.{head}") for head in heads]
        return config

    def _feed_forward(self, name: str, mlp: Mlp) -> _core.FeedForwardConfig:
        config = _core.FeedForwardConfig()
        copy_fields(mlp, config)
        config.activation = ACTIVATIONS.index(mlp.activation)
        if mlp.gated:
            config.gate = self._linear(f"{name}.gate")
        config.up, config.down = self._linear(f"{name}.up"), self._linear(f"{name}.down")
        return config

    def _experts(self, name: str, moe: Moe) -> _core.ExpertsConfig:
        config = _core.ExpertsConfig()
        copy_fields(moe, config)
        config.scoring = SCORINGS.index(moe.scoring)
        config.router = self._linear(f"{name}.router")
        if moe.e_score_correction_bias:
            config.e_score_correction_bias = self._vector(f"{name}.correction")
        config.experts = [
            self._feed_forward(f"{name}.experts.{e}", moe.expert) for e in range(moe.experts)
        ]
        if moe.shared is not None:
            config.shared = self._feed_forward(f"{name}.shared", moe.shared)
        if moe.shared_gate:
            config.shared_gate = self._linear(f"{name}.shared_gate")
        if moe.expert_scales:
            config.expert_scales = self._vector(f"{name}.expert_scales")
        if moe.separate_norms:
            hidden = self._spec.hidden_size
            for part in APART_NORMS:
                norm = self._norm(f"{name}.{part}", self._spec.norm, hidden)
                setattr(config, part.replace("_post_norm", "_post"), norm)
        return config
