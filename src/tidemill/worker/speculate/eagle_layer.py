"""The decoder layer of an EAGLE-3 head, float32 but for what its products are computed in.

At position t it takes the model's state g there (`fc` of some layers' residual streams) and the
embedding of the token behind it, t + 1, and guesses the token at t + 2. Its keys and values depend
on these inputs alone, so those of tokens that are only read need neither attention nor MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import Backend
from tidemill.models.rope import inverse_frequencies
from tidemill.worker.speculate.eagle_files import EagleFiles
from tidemill.worker.speculate.matrices import Matrix

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_GROWTH = 128  # positions


class Cache:
    """Keys and values of one sequence, [kv_heads, positions, head_dim] each: see
    `layer_drafter.LayerCache`."""

    def __init__(self, kv_heads: int, head_dim: int, first: int) -> None:
        self.first = self.end = first
        self._k = np.zeros((kv_heads, 0, head_dim), np.float32)
        self._v = np.zeros_like(self._k)

    def restart(self, first: int) -> None:
        """See LayerCache."""
        self.first = self.end = first

    def reserve(self, end: int) -> bool:
        """See LayerCache. It grows when it is written."""
        return True

    def close(self) -> None:
        """See LayerCache."""

    def put(self, at: int, k: Float32, v: Float32) -> None:
        """Write the positions from `at` on; k, v [kv_heads, positions, head_dim]."""
        begin = at - self.first
        end = begin + k.shape[1]
        if end > self._k.shape[1]:
            more = max(_GROWTH, end // 8, end - self._k.shape[1])
            room = ((0, 0), (0, more), (0, 0))
            self._k, self._v = np.pad(self._k, room), np.pad(self._v, room)
        self._k[:, begin:end], self._v[:, begin:end] = k, v

    def upto(self, end: int) -> tuple[Float32, Float32]:
        """Those of the positions before `end`."""
        count = end - self.first
        return self._k[:, :count], self._v[:, :count]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._k.nbytes + self._v.nbytes


class EagleLayer:
    """See the module and `layer_drafter.DraftLayer`.

    Args:
        files: the head; its values are read here.
        context: positions that a sequence may have.
        products: matrices that backends compute, by name; others are computed here.
    """

    def __init__(self, files: EagleFiles, context: int, products: Mapping[str, Matrix]) -> None:
        self._files = files
        self._products = products
        self._w = {
            name: np.ascontiguousarray(one.values())
            for name, one in files.weights.items()
            if name not in products
        }
        self._frequencies = np.array(inverse_frequencies(files.rope, context), np.float64)

    @property
    def backends(self) -> list[Backend]:
        """See DraftLayer."""
        return [matrix.backend for matrix in self._products.values()]

    @property
    def nbytes(self) -> int:
        """See DraftLayer."""
        return sum(one.nbytes for one in self._w.values())

    @property
    def steps(self) -> int:
        """See DraftLayer."""
        return sum(matrix.steps for matrix in self._products.values())

    def cache(self, first: int) -> Cache:
        """See DraftLayer."""
        return Cache(self._files.kv_heads, self._files.head_dim, first)

    def states(self, streams: Float32) -> Float32:
        """See DraftLayer."""
        return self._times(np.concatenate(list(streams), axis=-1), "fc")

    def read(
        self, caches: Sequence[Cache], counts: Sequence[int], g: Float32, embedded: Float32
    ) -> None:
        """See DraftLayer."""
        ends = zip(caches, counts, strict=True)
        positions = np.concatenate([cache.end + np.arange(count) for cache, count in ends])
        k, v = self._keys(self._inputs(g, embedded), positions)
        at = 0
        for cache, count in zip(caches, counts, strict=True):
            cache.put(cache.end, k[:, at : at + count], v[:, at : at + count])
            cache.end += count
            at += count

    def draft(
        self, caches: Sequence[Cache], positions: Int64, g: Float32, embedded: Float32
    ) -> Float32:
        """See DraftLayer."""
        f = self._files
        x = self._inputs(g, embedded)
        k, v = self._keys(x, positions)
        q = self._times(x, "q_proj").reshape(len(g), f.heads, f.head_dim)
        q = self._rotated(q.transpose(1, 0, 2), positions) * np.float32(f.head_dim**-0.5)
        mixed = np.empty((len(g), f.heads * f.head_dim), np.float32)
        group = f.heads // f.kv_heads
        for i, (cache, position) in enumerate(zip(caches, positions.tolist(), strict=True)):
            cache.put(position, k[:, i : i + 1], v[:, i : i + 1])
            keys, values = cache.upto(position + 1)
            scores = q[:, i].reshape(f.kv_heads, group, f.head_dim) @ keys.transpose(0, 2, 1)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            mixed[i] = (scores @ values).reshape(-1)
        residual = self._normed(g, "hidden_norm") if f.norm_first else g
        y = residual + self._times(mixed, "o_proj")
        z = self._normed(y, "post_attention_layernorm")
        gate, up = self._times(z, "gate_proj"), self._times(z, "up_proj")
        # exp overflows to infinity where the gate is far below zero, which gives the limit, 0.
        with np.errstate(over="ignore"):
            inner = gate / (1 + np.exp(-gate)) * up
        return y + self._times(inner, "down_proj")

    def scored(self, x: Float32) -> Float32:
        """See DraftLayer."""
        return self._normed(x, "norm")

    def limit_cache(self, blocks: int) -> None:
        """See DraftLayer. Caches have the tokens of the model's and no more."""

    def empty_cache(self) -> None:
        """See DraftLayer."""

    def kv_bytes(self) -> int:
        """See DraftLayer."""
        return 0

    def _inputs(self, g: Float32, embedded: Float32) -> Float32:
        return np.concatenate(
            [self._normed(embedded, "input_layernorm"), self._normed(g, "hidden_norm")], axis=-1
        )

    def _keys(self, x: Float32, positions: Int64) -> tuple[Float32, Float32]:
        f = self._files
        k, v = (
            self._times(x, name).reshape(len(x), f.kv_heads, f.head_dim).transpose(1, 0, 2)
            for name in ("k_proj", "v_proj")
        )
        return self._rotated(k, positions), v

    def _rotated(self, x: Float32, positions: Int64) -> Float32:
        """Rope in the half-split layout; x [heads, positions, head_dim]."""
        pairs = len(self._frequencies)
        angles = positions[:, None] * self._frequencies
        factor = self._files.rope.attention_factor
        cos = (np.cos(angles) * factor).astype(np.float32)
        sin = (np.sin(angles) * factor).astype(np.float32)
        a, b, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def _normed(self, x: Float32, name: str) -> Float32:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self._files.norm_eps))
        return np.asarray(x / scale * self._w[name], np.float32)

    def _times(self, x: Float32, name: str) -> Float32:
        if (product := self._products.get(name)) is not None:
            return product(x)
        return np.asarray(x @ self._w[name].T, np.float32)
