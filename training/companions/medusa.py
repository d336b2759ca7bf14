"""Four Medusa heads for brook (Cai et al., 2024, "Medusa-1": the trunk stays frozen).

Head k predicts the token k + 2 places ahead of the last hidden state: one residual block
``g = h + silu(W h + b)``, then a map ``M g`` scored by brook's own output matrix E. The paper gives
each head an output matrix of its own; here it is the product ``E M``, a third of the size.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.batches import Batch
from training.companions.adapters import write
from training.companions.fit import batches, fit
from training.data.mixture import draw
from training.data.source import Source
from training.model import Decoder

HEADS = 4


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.map = nn.Linear(width, width, bias=False)
        # Brook is sure of the next token; of those behind it no head can be as sure.
        with torch.no_grad():
            self.map.weight.copy_(0.3 * torch.eye(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.map(hidden + F.silu(self.linear(hidden)))


def medusa_loss(brook: Decoder, heads: nn.ModuleList, batch: Batch) -> Tensor:
    """Mean cross-entropy of all heads, each k weighted by 0.8**k as in the paper."""
    with torch.autocast(batch.tokens.device.type, torch.bfloat16):
        with torch.no_grad():
            hidden = brook(batch.tokens)
        total = hidden.new_zeros((), dtype=torch.float32)
        answer = torch.zeros_like(batch.tokens, dtype=torch.bool)
        answer[batch.where[:, 0], batch.where[:, 1]] = True
        following = torch.zeros_like(batch.tokens)
        following[batch.where[:, 0], batch.where[:, 1]] = batch.wanted
        for k, head in enumerate(heads):
            ahead = k + 1
            # Position t has a target for head k if t + ahead predicts an answer token.
            rows, columns = answer[:, ahead:].nonzero(as_tuple=True)
            scores = brook.logits(head(hidden[rows, columns]))
            wanted = following[rows, columns + ahead]
            total = total + 0.8**k * F.cross_entropy(scores.float(), wanted)
    return total


def train_medusa(
    brook: Decoder, tokenizer: Tokenizer, output: Path, minutes: float
) -> dict[str, float]:
    """Train the heads; file: ``{k}.0.linear.weight`` and ``.bias``, ``{k}.1.weight`` [D, D]."""
    torch.manual_seed(4)
    for p in brook.parameters():
        p.requires_grad_(False)
    where = next(brook.parameters()).device
    heads = nn.ModuleList(Head(brook.shape.hidden_size) for _ in range(HEADS)).to(where)
    source = Source("medusa")
    data = batches(tokenizer, lambda: draw(source), "medusa")
    facts = fit(
        heads.parameters(), data, lambda b, _: medusa_loss(brook, heads, b), minutes, 0.003,
        "medusa", where,
    )  # fmt: skip
    tensors = {}
    for k, head in enumerate(heads):
        tensors[f"{k}.0.linear.weight"] = head.linear.weight
        tensors[f"{k}.0.linear.bias"] = head.linear.bias
        tensors[f"{k}.1.weight"] = head.map.weight
    config = {
        "model_type": "medusa", "medusa_num_heads": HEADS, "medusa_num_layers": 1,
        "output": "embed_tokens @ map",
        "hidden_size": brook.shape.hidden_size, "vocab_size": brook.shape.vocab_size,
        "base_model_name_or_path": "brook",
    }  # fmt: skip
    write(output, "model.safetensors", tensors, config)
    return facts
