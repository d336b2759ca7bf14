"""What transformers says about a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.tiny_checkpoints import VOCAB


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids, no special ones."""
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


def reference_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """float32 [len(tokens), vocab]."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def reference_greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    """transformers' own greedy continuation of `count` tokens, end tokens ignored."""
    import torch

    with torch.inference_mode():
        known = torch.tensor([tokens])
        made = model.generate(
            known,
            attention_mask=torch.ones_like(known),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return made[0, len(tokens) :].tolist()
