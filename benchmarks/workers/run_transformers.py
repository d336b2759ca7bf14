"""transformers on torch under side_by_side.py: the model's own forward and cache."""

from __future__ import annotations

import time

import protocol
import torch
import transformers


class Transformers:
    """See `protocol`; the operations are those of every engine in this folder."""

    def open(self, model: str, threads: int, context: int, sequences: int) -> dict[str, object]:
        """Load in bfloat16."""
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(model, dtype=torch.bfloat16).eval()
        self.prefill(64)
        return {"setting": f"torch {torch.__version__}"}

    def _forward(self, ids: torch.Tensor, cache: object) -> tuple[torch.Tensor, object]:
        out = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values

    def prefill(self, tokens: int) -> float:
        """Seconds for a prompt, to its first token."""
        ids = torch.tensor([[(7 * i) % 1000 for i in range(tokens)]])
        begun = time.perf_counter()
        self._forward(ids, None)
        return time.perf_counter() - begun

    def prepare(self, sequences: int, depth: int) -> None:
        """Nothing: `decode` fills its cache itself, outside the time it gives."""

    def decode(self, sequences: int, depth: int, tokens: int) -> float:
        """Seconds for `tokens` steps of so many sequences, each with `depth` tokens cached."""
        ids = torch.tensor([[(7 * i) % 1000 for i in range(depth)]] * sequences)
        ids, cache = self._forward(ids, None)
        begun = time.perf_counter()
        for _ in range(tokens):
            ids, cache = self._forward(ids, cache)
        return time.perf_counter() - begun


if __name__ == "__main__":
    protocol.serve(Transformers())
