"""Tidemill's native backend under side_by_side.py: steps as the engine submits them, no server.

Every step samples greedily. While decoding, the next step is submitted before the one before it is
waited for, as the engine does.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers.backend_driver import BackendDriver, DrivenSequence, options

from tidemill.backends import native
from tidemill.backends.base import LOGITS_NONE, ExportedBlocks
from tidemill.loading import open_model

BLOCK = 32
CHUNK = 512
FILLED_AT_ONCE = 32


class Tidemill:
    """See `protocol`; the operations are those of every engine in this folder."""

    def open(
        self, model: str, threads: int, context: int, sequences: int,
        quantize: str = "none", kv_dtype: str = "bfloat16", isa: str | None = None,
    ) -> dict[str, object]:  # fmt: skip
        """Load; room for `sequences` of `context` tokens each."""
        files = open_model(Path(model))
        how = options(
            dtype="bfloat16", quantize=quantize, kv_dtype=kv_dtype, block_size=BLOCK,
            max_positions=context, threads=threads, isa=isa,
        )  # fmt: skip
        self.backend = native.load(files.spec, files.tensors, how)
        self.blocks = sequences * (-(-context // BLOCK) + 1)
        self.driver = BackendDriver(self.backend, self.blocks)
        self._filled = False
        self.prefill(64)
        self.decode(1, 64, 4)
        memory = self.backend.memory()
        block = self.backend._core.block_bytes(0)
        return {
            "setting": memory.isa,
            "weight_bytes": memory.weight_bytes,
            "kv_bytes_per_token": block / BLOCK,
        }

    def prefill(self, tokens: int) -> float:
        """Seconds for a prompt, in steps of 512 tokens, to its first sampled token."""
        sequence = self.driver.sequence([(7 * i) % 1000 for i in range(tokens)])
        begun = time.perf_counter()
        while sequence.computed < tokens:
            count = min(CHUNK, tokens - sequence.computed)
            last = sequence.computed + count == tokens
            rows = [(sequence, count)]
            if last:
                self.driver.run(rows, sample=True, return_logits=False)
            else:
                self.driver.run(rows, logits=LOGITS_NONE, return_logits=False)
        seconds = time.perf_counter() - begun
        self.driver.free(sequence)
        return seconds

    def prepare(self, sequences: int, depth: int) -> None:
        """Fill the cache: memory that was never written is not read from memory."""
        if self._filled:
            return
        self._filled = True
        rng = np.random.default_rng(0)
        spec = self.backend.spec
        data = ExportedBlocks(self.backend.options.kv_dtype, [], [])
        for layer in spec.layers:
            shape = (FILLED_AT_ONCE, BLOCK, layer.mixer.kv_heads, layer.mixer.head_dim)
            for part, scales in ((data.keys, data.key_scales), (data.values, data.value_scales)):
                if data.kv_dtype == "int8":
                    part.append(rng.integers(-127, 128, shape, np.int8))
                    scales.append(np.full(shape[:3], 0.01, np.float32))
                else:
                    values = rng.standard_normal(shape, np.float32)
                    part.append((values.view(np.uint32) >> 16).astype(np.uint16))
        for first in range(0, self.blocks, FILLED_AT_ONCE):
            count = min(FILLED_AT_ONCE, self.blocks - first)
            part = ExportedBlocks(
                data.kv_dtype,
                [a[:count] for a in data.keys],
                [a[:count] for a in data.values],
                [a[:count] for a in data.key_scales],
                [a[:count] for a in data.value_scales],
            )
            self.backend.import_blocks(0, np.arange(first, first + count, dtype=np.int32), part)

    def decode(self, sequences: int, depth: int, tokens: int) -> float:
        """Seconds for `tokens` steps of so many sequences, each with `depth` tokens cached."""
        streams = [self.driver.sequence([1] * depth) for _ in range(sequences)]
        for stream in streams:
            stream.computed = depth
            stream.tokens.append(5)
        rows: list[tuple[DrivenSequence, int]] = [(stream, 1) for stream in streams]
        first = self.driver.inputs(rows, sample=True, return_logits=False)
        future = list(range(sequences))
        begun = time.perf_counter()
        flying = deque([self.backend.submit(first)])
        for _ in range(tokens - 1):
            step = self.driver.inputs(rows, sample=True, return_logits=False, future=future)
            flying.append(self.backend.submit(step))
            flying.popleft().result()
        flying.popleft().result()
        seconds = time.perf_counter() - begun
        for stream in streams:
            self.driver.free(stream)
        return seconds


if __name__ == "__main__":
    protocol.serve(Tidemill())
