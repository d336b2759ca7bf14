"""Checks at start that a model tolerates a quantized KV cache.

Keys of some models have outlier channels so large that quantization to 8 bits per head, or 4 bits
per group, rounds the other channels to zero (Qwen2's biases are known for it). The model's files do
not tell, so next-token distributions are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.base import Backend
from tidemill.base.clock import monotonic
from tidemill.base.errors import config_error
from tidemill.worker.text_steps import log_softmax, text_states, text_step

# Cache types that are checked before use.
NARROW = ("int8", "int4")

# Length of the generated text: long enough for attention over many positions, within seconds.
TOKENS = 64
MIN_TOKENS = 16
WRITING_SECONDS = 1.5

MAX_DIVERGENCE = 0.1
"""Mean KL divergence in nats per token: some ten times that of int8 for a tolerant model."""


def check_kv(backend: Backend, wide: str, narrow: str, first: int) -> str:
    """Compare next-token distributions with both cache types on a text that the model generates.

    Leaves the backend with a small cache: allocate afterwards.

    Args:
        backend: loaded, without requests.
        wide, narrow: element types of the caches.
        first: the text's first token.

    Returns:
        What was measured, in a line.

    Raises:
        TidemillError: CONFIG naming ``kv_dtype`` and the divergence where the model breaks.
    """
    groups = len(backend.spec.cache_groups())
    states = text_states(backend.spec)
    length = min(TOKENS, backend.options.max_positions)
    blocks = -(-length // backend.options.block_size)

    def logits(step: int, tokens: Sequence[int], start: int) -> NDArray[np.float32]:
        inputs = text_step(step, tokens, start, blocks, groups, states)
        found = backend.submit(inputs).result().logits
        assert found is not None
        return found

    backend.allocate_cache((blocks,) * groups, wide)
    rng, text, begun = np.random.default_rng(0), [first], monotonic()
    while len(text) < length:
        row = np.exp(log_softmax(logits(len(text), text[-1:], len(text) - 1))[0])
        text.append(int(rng.choice(len(row), p=row / row.sum())))
        if len(text) >= MIN_TOKENS and monotonic() - begun > WRITING_SECONDS:
            break
    before = log_softmax(logits(length + 1, text, 0))
    backend.allocate_cache((blocks,) * groups, narrow)
    after = log_softmax(logits(length + 2, text, 0))
    divergence = float((np.exp(before) * (before - after)).sum(axis=1).mean())
    same = float((before.argmax(1) == after.argmax(1)).mean())
    measured = (
        f"{divergence:.2g} nats per token from a {wide} one over {len(text)} tokens of the model's "
        f"own, the same first choice at {100 * same:.0f}%"
    )
    if not math.isfinite(divergence) or divergence > MAX_DIVERGENCE:
        raise config_error(
            "kv_dtype",
            f"kv_dtype: this model breaks with an {narrow} KV cache: {measured} (at most "
            f"{MAX_DIVERGENCE} nats are accepted); use --kv-dtype {wide}",
        )
    return f"{narrow} KV cache: {measured}"
