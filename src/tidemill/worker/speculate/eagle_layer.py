"""The decoder layer of an EAGLE-3 head, float32 but for what its products are computed in.

At position t it takes the model's state g there (`fc` of some layers' residual streams) and the
embedding of the token behind it, t + 1, and guesses the token at t + 2. Its keys and values depend
on these inputs alone, so those of tokens that are only read need neither attention nor MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tidemill.models.rope import inverse_frequencies
from tidemill.worker.speculate.eagle_files import EagleFiles

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Product = Callable[[Float32], Float32]

_GROWTH = 128  # positions


class Cache:
    """Keys and values of one sequence, [kv_heads, positions, head_dim] each.

    Attributes:
        first: position of the first.
        end: position after the last that counts; what is behind it may be overwritten.
    """

    def __init__(self, kv_heads: int, head_dim: int, first: int) -> None:
        self.first = self.end = first
        self._k = np.zeros((kv_heads, 0, head_dim), np.float32)
        self._v = np.zeros_like(self._k)

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
    """See the module.

    Args:
        files: the head; its values are read here.
        context: positions that a sequence may have.
        products: x [N, columns] -> x @ matrix.T, of matrices that are computed elsewhere.
    """

    def __init__(self, files: EagleFiles, context: int, products: Mapping[str, Product]) -> None:
        self._files = files
        self._products = products
        self._w = {
            name: np.ascontiguousarray(one.values())
            for name, one in files.weights.items()
            if name not in products
        }
        self._frequencies = np.array(inverse_frequencies(files.rope, context), np.float64)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(one.nbytes for one in self._w.values())

    def cache(self, first: int) -> Cache:
        """An empty cache, from a position on."""
        return Cache(self._files.kv_heads, self._files.head_dim, first)

    def states(self, streams: Float32) -> Float32:
        """g [tokens, width] of residual streams [layers, tokens, width]."""
        return self._times(np.concatenate(list(streams), axis=-1), "fc")

    def read(self, cache: Cache, g: Float32, embedded: Float32) -> None:
        """Append keys and values behind the cache's end: g, embedded [positions, width]."""
        if len(g) == 0:
            return
        positions = cache.end + np.arange(len(g))
        x = self._inputs(g, embedded)
        cache.put(cache.end, *self._keys(x, positions))
        cache.end += len(g)

    def draft(
        self, caches: list[Cache], positions: Int64, g: Float32, embedded: Float32
    ) -> Float32:
        """The next states [sequences, width] of one position each, its keys and values written
        behind the cache's end.

        Args:
            caches: of each sequence.
            positions: int64 [sequences].
            g: [sequences, width].
            embedded: [sequences, width], of the token behind the position.
        """
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
        """What the output matrix takes of states."""
        return self._normed(x, "norm")

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
