"""Examples to padded batches of similar length, with a weight per token.

Every example is a row of its own and starts at position 0, as it will when served: nothing is
packed behind another text, and causal attention needs no mask for padding on the right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.data.source import Example
from training.render import prompt_text, target_text


@dataclass
class Batch:
    """tokens [B, T]; where [N, 2] (row, position) of predictions; wanted [N]; weight [N]."""

    tokens: Tensor
    where: Tensor
    wanted: Tensor
    weight: Tensor

    def to(self, device: torch.device) -> Batch:
        moved = (t.to(device, non_blocking=True) for t in self.__dict__.values())
        return Batch(*moved)


def encode(tokenizer: Tokenizer, examples: list[Example]) -> list[tuple[list[int], int]]:
    """Token ids of each whole text and how many of them are the prompt's."""
    # Prompts end with a line end or a special token and targets never start with space, so the
    # two parts tokenise apart as they do together.
    prompts = tokenizer.encode_batch_fast([prompt_text(e) for e in examples])
    targets = tokenizer.encode_batch_fast([target_text(e) for e in examples])
    return [(p.ids + t.ids, len(p.ids)) for p, t in zip(prompts, targets, strict=True)]


def assemble(
    rows: list[tuple[list[int], int]], prompt_share: float, prompt_weight: float, seed: int
) -> Batch:
    """A batch whose loss is on all target tokens and on a share of the prompts' tokens."""
    generator = torch.Generator().manual_seed(seed)
    width = max(len(ids) for ids, _ in rows) - 1
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    weights = torch.zeros(len(rows), width)
    wanted = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (ids, prompt) in enumerate(rows):
        n = len(ids) - 1
        tokens[i, :n] = torch.tensor(ids[:-1])
        wanted[i, :n] = torch.tensor(ids[1:])
        weights[i, : prompt - 1] = prompt_weight
        weights[i, prompt - 1 : n] = 1.0
    if prompt_share < 1:
        kept = torch.rand(weights.shape, generator=generator) < prompt_share
        weights = torch.where((weights < 1.0) & ~kept, 0.0, weights)
    where = weights.nonzero()
    picked = (where[:, 0], where[:, 1])
    return Batch(tokens, where, wanted[picked], weights[picked])


def stream(
    tokenizer: Tokenizer,
    draw: Callable[[], Example],
    tokens_per_batch: Callable[[], int],
    shuffle: Callable[[list], None],
    pool: int = 1024,
    max_length: int = 2048,
) -> Iterator[list[tuple[list[int], int]]]:
    """Endless groups of rows of similar length, at most ``tokens_per_batch()`` padded tokens."""
    while True:
        rows = encode(tokenizer, [draw() for _ in range(pool)])
        rows = sorted((r for r in rows if len(r[0]) <= max_length), key=lambda r: len(r[0]))
        limit, groups, group = tokens_per_batch(), [], []
        for row in rows:
            if group and (len(group) + 1) * len(row[0]) > limit:
                groups.append(group)
                group = []
            group.append(row)
        groups.append(group)
        shuffle(groups)
        yield from groups
