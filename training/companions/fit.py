"""A short training run with AdamW over few parameters, bounded by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.batches import Batch, assemble, stream
from training.data.source import Example


def batches(
    tokenizer: Tokenizer,
    draw: Callable[[], Example],
    name: str,
    tokens: int = 3072,
    prompt_share: float = 0.0,
) -> Iterator[Batch]:
    """Endless batches of about ``tokens`` padded tokens, with loss on answers."""
    rows = stream(tokenizer, draw, lambda: tokens, Random(name).shuffle, pool=512)
    for i, group in enumerate(rows):
        yield assemble(group, prompt_share, 0.3, i)


def fit(
    params: Iterable[nn.Parameter],
    data: Iterator[Batch],
    loss_of: Callable[[Batch, float], Tensor],
    minutes: float,
    lr: float,
    name: str,
    where: torch.device,
) -> dict[str, float]:
    """Minimise ``loss_of(batch, share of the time used)``; a linear decay to zero at the end."""
    params = list(params)
    optimizer = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    begun = shown = time.monotonic()
    steps, tokens, mean = 0, 0, 0.0
    while (used := (time.monotonic() - begun) / (60 * minutes)) < 1:
        batch = next(data).to(where)
        factor = min(1.0, (steps + 1) / 50, (1 - used) / 0.5)
        for group in optimizer.param_groups:
            group["lr"] = lr * factor
        loss = loss_of(batch, used)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps, tokens = steps + 1, tokens + batch.tokens.numel()
        mean = 0.97 * mean + 0.03 * float(loss.detach()) if mean else float(loss.detach())
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            bar = "#" * int(24 * used)
            print(f"{name:<7} [{bar:<24}] step {steps} loss {mean:.4f} "
                  f"{minutes * (1 - used):.1f} min left", flush=True)  # fmt: skip
    return {"minutes": minutes, "steps": steps, "tokens": tokens, "loss": round(mean, 4)}
