"""llama.cpp under side_by_side.py, through llama-cpp-python's low-level binding.

The work is llama-bench's and llama-batched-bench's: `llama_decode` of a prompt in batches of 2048
(512 at once), or of one token of each sequence, without sampling. The cache of a deep context is
made from a short one's saved state, because computing 16k tokens first would take minutes.
"""

from __future__ import annotations

import ctypes
import time

import llama_cpp.llama_cpp as api
import protocol
from llama_state import tile_state

BATCH = 2048
STATE_TOKENS = 32


class Llama:
    """See `protocol`; the operations are those of every engine in this folder."""

    def open(
        self, model: str, threads: int, context: int, sequences: int,
        flash: bool = False, repack: bool = True,
    ) -> dict[str, object]:  # fmt: skip
        """Load; `repack` lets it use weight layouts of its own (AMX or interleaved rows)."""
        api.llama_backend_init()
        self._quiet = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self._quiet, ctypes.c_void_p(0))
        how = api.llama_model_default_params()
        how.use_extra_bufts = repack
        self.model = api.llama_model_load_from_file(model.encode(), how)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        settings = api.llama_context_default_params()
        settings.n_ctx = sequences * (context + 64)
        settings.n_batch, settings.n_ubatch = BATCH, 512
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = int(flash)
        settings.no_perf = True
        self.context = api.llama_init_from_model(self.model, settings)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = api.llama_get_memory(self.context)
        self.batch = api.llama_batch_init(BATCH, 0, 1)
        self.prefill(64)
        self._prepared = (0, 0)
        self.prepare(1, 64)
        self.decode(1, 64, 4)
        return {"setting": f"fa {int(flash)}, repack {int(repack)}"}

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Decode rows of (token, position, sequence, logits wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if code := api.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode gave {code}")

    def prefill(self, tokens: int) -> float:
        """Seconds for a prompt, to its last row's logits."""
        api.llama_memory_clear(self.memory, True)
        self._prepared = (0, 0)
        begun = time.perf_counter()
        for first in range(0, tokens, BATCH):
            end = min(tokens, first + BATCH)
            self._run([((7 * i) % 1000, i, 0, i == tokens - 1) for i in range(first, end)])
        api.llama_synchronize(self.context)
        return time.perf_counter() - begun

    def prepare(self, sequences: int, depth: int) -> None:
        """Cache `depth` tokens of each sequence."""
        if self._prepared == (sequences, depth):
            return
        self.prefill(STATE_TOKENS)
        size = api.llama_state_seq_get_size(self.context, 0)
        buffer = (ctypes.c_uint8 * size)()
        if api.llama_state_seq_get_data(self.context, buffer, size, 0) != size:
            raise RuntimeError("llama.cpp did not save the state")
        state = tile_state(bytes(buffer), depth)
        api.llama_memory_clear(self.memory, True)
        tiled = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        for sequence in range(sequences):
            if not api.llama_state_seq_set_data(self.context, tiled, len(state), sequence):
                raise RuntimeError("llama.cpp did not take the repeated state")
            last = api.llama_memory_seq_pos_max(self.memory, sequence)
            if last != depth - 1:
                raise RuntimeError(f"sequence {sequence} ends at {last}, not at {depth - 1}")
        self._prepared = (sequences, depth)

    def decode(self, sequences: int, depth: int, tokens: int) -> float:
        """Seconds for `tokens` steps of so many sequences, each with `depth` tokens cached."""
        self.prepare(sequences, depth)
        begun = time.perf_counter()
        for step in range(tokens):
            self._run([(5 + step, depth + step, s, True) for s in range(sequences)])
            api.llama_synchronize(self.context)
        seconds = time.perf_counter() - begun
        for sequence in range(sequences):
            api.llama_memory_seq_rm(self.memory, sequence, depth, -1)
        return seconds


if __name__ == "__main__":
    protocol.serve(Llama())
