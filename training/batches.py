"""Examples to padded batches of similar length, with a weight per token.

Every example is a row of its own and starts at position 0, as it will when served: nothing is
packed behind another text, and causal attention needs no mask for padding on the right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training.data.source import Example
from training.render import pieces

# Rows are padded to these lengths: a few shapes of tensors instead of thousands.
WIDTHS = [48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 1536,
          2048]  # fmt: skip
# With tools offered, an answer's first token is the choice between a call and words: the one hard
# decision among thirty tokens that follow from it.
DECISION = 4.0
# Token ids, and for each the weight with which it is learned (0: the prompt's).
Row = tuple[list[int], list[float]]


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

    def padded(self, to: int = 256) -> Batch:
        """The same with N a multiple of ``to``, by predictions of no weight."""
        more = -len(self.where) % to
        where, wanted = F.pad(self.where, (0, 0, 0, more)), F.pad(self.wanted, (0, more))
        return Batch(self.tokens, where, wanted, F.pad(self.weight, (0, more)))


def encode(tokenizer: Tokenizer, examples: list[Example]) -> list[Row]:
    """Token ids of each whole text and the weight of each token."""
    # Prompts end with a line end or a special token and targets never start with space, so the
    # parts tokenise apart as they do together.
    parts = [pieces(e) for e in examples]
    encoded = iter(tokenizer.encode_batch_fast([text for p in parts for text, _ in p]))
    rows: list[Row] = []
    for example, texts in zip(examples, parts, strict=True):
        ids: list[int] = []
        weights: list[float] = []
        for (_, learned), found in zip(texts, encoded, strict=False):
            ids += found.ids
            weights += [float(learned)] * len(found.ids)
            if learned and example.tools:
                weights[-len(found.ids)] = DECISION
        rows.append((ids, weights))
    return rows


def width_of(length: int) -> int:
    """The padded width for a row of ``length`` predictions."""
    return next((w for w in WIDTHS if w >= length), length)


def assemble(rows: list[Row], prompt_share: float, prompt_weight: float, seed: int) -> Batch:
    """A batch whose loss is on all target tokens and on a share of the prompts' tokens."""
    generator = torch.Generator().manual_seed(seed)
    width = width_of(max(len(ids) for ids, _ in rows) - 1)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    weights = torch.zeros(len(rows), width)
    wanted = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (ids, learned) in enumerate(rows):
        n = len(ids) - 1
        tokens[i, :n] = torch.tensor(ids[:-1])
        wanted[i, :n] = torch.tensor(ids[1:])
        weights[i, :n] = torch.tensor(learned[1:])
        weights[i, :n][weights[i, :n] == 0] = prompt_weight
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
) -> Iterator[list[Row]]:
    """Endless groups of rows of one padded width, ``tokens_per_batch()`` tokens or a little less.

    Rows that fill no group wait for the next pool.
    """
    waiting: dict[int, list[Row]] = {}
    while True:
        limit, groups = tokens_per_batch(), []
        for row in encode(tokenizer, [draw() for _ in range(pool)]):
            if len(row[0]) > max_length:
                continue
            width = width_of(len(row[0]) - 1)
            group = waiting.setdefault(width, [])
            group.append(row)
            if len(group) >= max(1, limit // width):
                groups.append(waiting.pop(width))
        shuffle(groups)
        yield from groups
