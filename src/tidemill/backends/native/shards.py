"""The part of a model that one process of a group computes: which rows of which tensors.

A group's processes hold the rows of a model's matrices between them (csrc/model/shard.h says which,
and why the parts are the whole bit for bit): projections to queries, keys and values by KV heads,
other matrices by panels of rows. What no rule names is held by all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from tidemill.backends.base import Shard
from tidemill.backends.native import _core
from tidemill.base.errors import unsupported
from tidemill.models.layers import Attention, Layer, Mlp, Moe
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import DeferredTensor, RawTensor, TensorHeader, TensorMap

Rows = tuple[int, int]


def _equal(count: int, shard: Shard) -> Rows:
    each = count // shard.ranks
    return shard.rank * each, (shard.rank + 1) * each


def _panels(count: int, shard: Shard) -> Rows:
    bounds = _core.shard_bounds(count, shard.ranks)
    return bounds[shard.rank], bounds[shard.rank + 1]


_LINEAR = r"\.(weight|bias)"
_RULES: tuple[tuple[re.Pattern[str], Callable[[int, Shard], Rows]], ...] = (
    (re.compile(r"layers\.\d+\.attn\.(q|k|v|gate)" + _LINEAR), _equal),
    (re.compile(r"layers\.\d+\.attn\.sinks"), _equal),
    (re.compile(r"layers\.\d+\.attn\.o" + _LINEAR), _panels),
    (re.compile(r"layers\.\d+\.mlp\.((experts\.\d+|shared)\.)?(gate|up|down)" + _LINEAR), _panels),
    (re.compile(r"lm_head" + _LINEAR), _panels),
)
_HEAD_NORMS = re.compile(r"layers\.(\d+)\.attn\.[qk]_norm" + _LINEAR)


def check_splits(spec: DecoderSpec, ranks: int) -> None:
    """Raise UNSUPPORTED, naming the reason, for a model that cannot be computed by so many
    processes."""
    least = _core.PANEL_ROWS * ranks
    if spec.layer_inputs is not None:
        raise _refused("it has inputs of every layer (per-layer embeddings)")
    if not spec.generates or not spec.layers:
        raise _refused("it generates no text")
    if min(spec.hidden_size, spec.vocab_size) < least:
        raise _refused(f"it is too small for {ranks} processes")
    for layer in spec.layers:
        _check_layer(layer, ranks, least)


def _check_layer(layer: Layer, ranks: int, least: int) -> None:
    if layer.recurrent is not None:
        raise _refused("it has recurrent layers")
    if (mixer := layer.attention) is not None:
        if mixer.latent is not None:
            raise _refused("its attention is latent, so all heads share their keys and values")
        if mixer.kv_heads % ranks:
            raise _refused(f"its {mixer.kv_heads} KV heads are no multiple of {ranks}")
        if mixer.qk_norm is not None and mixer.qk_norm.scope == "full":
            raise _refused("it norms the queries of all heads together")
    for mlp in _feed_forwards(layer):
        if mlp.intermediate < least:
            raise _refused(f"its feed-forward blocks are too narrow for {ranks} processes")


def _feed_forwards(layer: Layer) -> list[Mlp]:
    mlp = layer.mlp
    if isinstance(mlp, Moe):
        return [mlp.expert, *([] if mlp.shared is None else [mlp.shared])]
    return [] if mlp is None else [mlp]


def _refused(why: str) -> Exception:
    return unsupported(
        "tensor_parallel",
        f"the model cannot be computed by several processes (--tensor-parallel): {why}",
    )


def part_of_spec(spec: DecoderSpec, shard: Shard) -> DecoderSpec:
    """The spec with the heads of a part; all other sizes are the model's."""

    def part(mixer: Attention) -> Attention:
        begin, end = _equal(mixer.heads, shard)
        heads, kv_heads = mixer.heads // shard.ranks, mixer.kv_heads // shard.ranks
        return replace(mixer, heads=heads, kv_heads=kv_heads, slopes=mixer.slopes[begin:end])

    layers = tuple(
        replace(layer, mixer=part(layer.mixer)) if isinstance(layer.mixer, Attention) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


class PartOfTensors(Mapping[str, RawTensor]):
    """The rows of a model's tensors that a part has. Bytes of other rows are not read.

    Args:
        spec: the whole model's.
        tensors: whole.
        shard: which part.
        packs_embedding: the embedding is packed, so that each part has rows of it; else all read
            their rows from the same file.
    """

    def __init__(
        self, spec: DecoderSpec, tensors: TensorMap, shard: Shard, *, packs_embedding: bool
    ) -> None:
        self._spec, self._tensors, self._shard = spec, tensors, shard
        self._packs_embedding = packs_embedding

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> RawTensor:
        whole = self._tensors[name]
        rows = self._rows(name, whole.shape[0])
        return whole if rows is None else _slice(whole, *rows)

    def _rows(self, name: str, count: int) -> Rows | None:
        if name == "embed.weight":
            return _panels(count, self._shard) if self._packs_embedding else None
        if (norm := _HEAD_NORMS.fullmatch(name)) is not None:
            attention = self._spec.layers[int(norm[1])].attention
            assert attention is not None and attention.qk_norm is not None
            return _equal(count, self._shard) if attention.qk_norm.scope == "heads" else None
        for pattern, rule in _RULES:
            if pattern.fullmatch(name):
                return rule(count, self._shard)
        return None


def _slice(whole: RawTensor, first: int, end: int) -> RawTensor:
    row_bytes = whole.nbytes // whole.shape[0]
    begin, stop = first * row_bytes, end * row_bytes
    shape = (end - first, *whole.shape[1:])

    def read() -> RawTensor:
        data = np.frombuffer(whole.data, np.uint8)[begin:stop]
        return RawTensor(whole.dtype, shape, data.data, whole.rounded)

    def release(at: int, until: int) -> None:
        whole.release_pages(begin + at, begin + until)

    header = TensorHeader(whole.dtype, shape, stop - begin, whole.rounded)
    return DeferredTensor(header, read, release)
