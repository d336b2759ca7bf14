"""The part of a model that one process of a group computes: which rows of which tensors.

A group's processes hold the rows of a model's matrices between them (csrc/model/shard.h says which,
and why the parts are the whole bit for bit): projections to queries, keys and values by KV heads,
matrices of feed-forward blocks and of the output by panels of rows. What is not named here is held
by all, and so is attention whose heads cannot be divided (`DecoderSpec.splits_heads`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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


_ATTENTION = r"layers\.(\d+)\.attn\."
_BY_HEADS = re.compile(_ATTENTION + r"((q|k|v|gate)\.(weight|bias)|sinks)")
_HEAD_NORMS = re.compile(_ATTENTION + r"(q|k)_norm\.(weight|bias)")
_HEADS_OUT = re.compile(_ATTENTION + r"o\.(weight|bias)")
_BY_PANELS = re.compile(
    r"(layers\.\d+\.mlp\.((experts\.\d+|shared)\.)?(gate|up|down)|lm_head)\.(weight|bias)"
)


def check_splits(spec: DecoderSpec, ranks: int) -> None:
    """Raise UNSUPPORTED, naming the reason, for a model that cannot be computed by so many
    processes."""
    least = _core.PANEL_ROWS * (ranks - 1) + 1  # a panel each, of which the last may be cut
    if not spec.generates or not spec.layers:
        raise _refused("it generates no text")
    if min(spec.hidden_size, spec.vocab_size) < least:
        raise _refused(f"it is too small for {ranks} processes")
    for i, layer in enumerate(spec.layers):
        source = None if layer.attention is None else layer.attention.kv_layer
        if source is not None and spec.splits_heads(i) != spec.splits_heads(source):
            raise _refused(f"layer {i} reads the keys of a layer that is divided otherwise")
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
        replace(layer, mixer=part(layer.mixer))
        if isinstance(layer.mixer, Attention) and spec.splits_heads(i)
        else layer
        for i, layer in enumerate(spec.layers)
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
        if _BY_PANELS.fullmatch(name):
            return _panels(count, self._shard)
        for pattern, rule in ((_BY_HEADS, _equal), (_HEAD_NORMS, _equal), (_HEADS_OUT, _panels)):
            if (found := pattern.fullmatch(name)) is not None:
                layer = int(found[1])
                divided = self._spec.splits_heads(layer)
                if pattern is _HEAD_NORMS:
                    divided = divided and self._norms_each_head(layer)
                return rule(count, self._shard) if divided else None
        return None

    def _norms_each_head(self, layer: int) -> bool:
        """Whether each head has weights of its own in the norms of queries and keys."""
        attention = self._spec.layers[layer].attention
        assert attention is not None and attention.qk_norm is not None
        return attention.qk_norm.scope == "heads"


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
