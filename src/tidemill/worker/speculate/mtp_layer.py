"""The decoder layer of a model's MTP layer, as a model of one layer with a KV cache of its own.

At position t it takes the model's final hidden state there and the embedding of the token behind
it, t + 1, and guesses the token at t + 2. Positions are counted from the first one that it has:
what attention sees are their distances.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import HIDDEN_LAST, Backend, Int32, StepOutputs
from tidemill.loading.mtp import MtpFiles
from tidemill.worker.speculate.blocks import DraftBlocks
from tidemill.worker.speculate.matrices import Matrix, bare_step

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

READ = 512
"""Tokens that a step reads at most."""


class MtpCache:
    """What the layer has of one sequence: see `layer_drafter.LayerCache`."""

    nbytes = 0

    def __init__(self, blocks: DraftBlocks, size: int, first: int) -> None:
        self.first = self.end = first
        self._pool, self._size = blocks, size
        self.blocks: list[int] = []

    def restart(self, first: int) -> None:
        """See LayerCache."""
        self.close()
        self.first = self.end = first

    def reserve(self, end: int) -> bool:
        """See LayerCache."""
        missing = -(-(end - self.first) // self._size) - len(self.blocks)
        if missing > 0:
            taken = self._pool.take(missing)
            self.blocks += taken
            return bool(taken)
        return True

    def close(self) -> None:
        """See LayerCache."""
        self._pool.release(self.blocks)
        self.blocks = []


class MtpLayer:
    """See the module and `layer_drafter.DraftLayer`.

    Args:
        files: the layer.
        backend: its decoder layer, its cache allocated.
        join: its `join`.
        blocks: of its cache.
    """

    def __init__(self, files: MtpFiles, backend: Backend, join: Matrix, blocks: int) -> None:
        self._backend, self._join = backend, join
        self._embedding_norm = files.embedding_norm.values()
        self._hidden_norm = files.hidden_norm.values()
        self._eps = np.float32(files.spec.norm_eps)
        self._blocks = DraftBlocks(blocks)
        self._size = backend.options.block_size
        self._steps = 0

    @property
    def backends(self) -> list[Backend]:
        """See DraftLayer."""
        return [self._backend, self._join.backend]

    @property
    def nbytes(self) -> int:
        """See DraftLayer."""
        return self._embedding_norm.nbytes + self._hidden_norm.nbytes

    @property
    def steps(self) -> int:
        """See DraftLayer."""
        return self._steps + self._join.steps

    def cache(self, first: int) -> MtpCache:
        """See DraftLayer."""
        return MtpCache(self._blocks, self._size, first)

    def states(self, streams: Float32) -> Float32:
        """See DraftLayer. The final hidden states as they are."""
        final: Float32 = streams[0]
        return final

    def read(
        self, caches: Sequence[MtpCache], counts: Sequence[int], g: Float32, embedded: Float32
    ) -> None:
        """See DraftLayer. A sequence for which no blocks are left begins anew behind its tokens."""
        x = self._inputs(g, embedded)
        starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
        left: list[tuple[MtpCache, int, int]] = []
        for cache, begin, end in zip(caches, starts, starts[1:], strict=False):
            if cache.reserve(cache.end + end - begin):
                left.append((cache, begin, end))
            else:
                cache.restart(cache.end + end - begin)
        while left:
            pieces: list[tuple[MtpCache, int, int]] = []
            room, later = READ, []
            for cache, begin, end in left:
                cut = min(end, begin + room)
                room -= cut - begin
                if cut > begin:
                    pieces.append((cache, begin, cut))
                if end > cut:
                    later.append((cache, cut, end))
            rows = np.concatenate([x[begin:end] for _, begin, end in pieces])
            self._run([(c, c.end, end - begin) for c, begin, end in pieces], rows, states=False)
            for cache, begin, end in pieces:
                cache.end += end - begin
            left = later

    def draft(
        self, caches: Sequence[MtpCache], positions: Int64, g: Float32, embedded: Float32
    ) -> Float32:
        """See DraftLayer."""
        rows = [(cache, at, 1) for cache, at in zip(caches, positions.tolist(), strict=True)]
        outputs = self._run(rows, self._inputs(g, embedded), states=True)
        assert outputs.hidden is not None
        return outputs.hidden

    def scored(self, x: Float32) -> Float32:
        """See DraftLayer. The norm is part of the layer."""
        return x

    def limit_cache(self, blocks: int) -> None:
        """See DraftLayer."""
        self._blocks.limit(blocks)
        self._backend.limit_cache(blocks)

    def empty_cache(self) -> None:
        """See DraftLayer."""
        self._backend.empty_cache()

    def kv_bytes(self) -> int:
        """See DraftLayer."""
        return self._backend.memory().kv_bytes

    def _run(
        self, rows: Sequence[tuple[MtpCache, int, int]], x: Float32, *, states: bool
    ) -> StepOutputs:
        """A step over (cache, first position, positions) of each row."""
        table = np.full((len(rows), max(len(cache.blocks) for cache, _, _ in rows)), -1, np.int32)
        for i, (cache, _, _) in enumerate(rows):
            table[i, : len(cache.blocks)] = cache.blocks
        counts: Int32 = np.array([count for _, _, count in rows], np.int32)
        self._steps += 1
        step = bare_step(self._steps, np.zeros(len(x), np.int32), [table], None, x, counts)
        step.context_len = np.array([at - cache.first for cache, at, _ in rows], np.int32)
        if states:
            step.hidden = np.full(len(rows), HIDDEN_LAST, np.uint8)
        return self._backend.submit(step).result()

    def _inputs(self, g: Float32, embedded: Float32) -> Float32:
        both = [self._normed(embedded, self._embedding_norm), self._normed(g, self._hidden_norm)]
        return self._join(np.concatenate(both, axis=-1))

    def _normed(self, x: Float32, weight: Float32) -> Float32:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._eps)
        return np.asarray(x / scale * weight, np.float32)
