"""The draft model: brook's vocabulary at a tenth of its size, taught by brook.

The first part of the time it learns from the data alone, which is fast; then from brook's
distributions on the same texts (Hinton et al., 2015), which is what a proposer must agree with.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training.batches import Batch
from training.export import save_model
from training.model import Decoder, Shape
from training.train import Plan, Trainer


def draft_shape(vocabulary: int) -> Shape:
    return Shape(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64,
    )  # fmt: skip


def distilled(brook: Decoder, student: Decoder, batch: Batch) -> Tensor:
    """Cross-entropy against brook's distribution, a little sharpened, where answers are."""
    at = (batch.where[:, 0], batch.where[:, 1])
    with torch.autocast(batch.tokens.device.type, torch.bfloat16):
        with torch.no_grad():
            taught = brook.logits(brook(batch.tokens)[at])
        scores = student.logits(student(batch.tokens)[at])
    wanted = F.softmax(taught.float() / 0.7, dim=-1)
    losses = -(wanted * F.log_softmax(scores.float(), dim=-1)).sum(-1)
    return (losses * batch.weight).sum() / batch.weight.sum()


class Apprentice(Trainer):
    """The ordinary trainer; brook's distributions replace the labels for the second half."""

    brook: Decoder
    taught_from = 0.5

    def loss(self, batch: Batch) -> Tensor:
        if self.share < self.taught_from:
            return super().loss(batch)
        return distilled(self.brook, self.model, batch)


def minutes_so_far(folder: Path) -> float:
    """How long the run of a checkpoint has taken; 0 without one."""
    file = folder / "checkpoint.pt"
    if not file.exists():
        return 0.0
    return float(torch.load(file, map_location="cpu")["progress"]["seconds"]) / 60


def train_draft(
    brook: Decoder,
    tokenizer: Tokenizer,
    runs: Path,
    output: Path,
    minutes: float,
    warm: bool = False,
) -> dict[str, float]:
    """Train (or resume) the draft model and write it in the Hugging Face layout.

    ``warm`` goes on from a finished draft for ``minutes`` more, at half the rates and with brook as
    the teacher from the start: for a brook that has changed only a little.
    """
    begin = minutes_so_far(runs / "draft") if warm else 0.0
    plan = Plan(
        runs / "draft", begin + minutes, seed=2, muon_lr=0.02, adam_lr=0.008,
        batch_tokens=(4096, 8192), early_until=0.3, decay_from=0.5, check_seconds=1e9,
        begin=begin, rate=0.5 if begin else 1.0,
    )  # fmt: skip
    trainer = Apprentice(plan, draft_shape(tokenizer.get_vocab_size()), tokenizer)
    trainer.brook = brook
    if begin:
        trainer.taught_from = 0.0
    model = trainer.run()
    save_model(output, model.cpu(), tokenizer)
    progress = trainer.progress
    return {
        "minutes": round(begin + minutes, 3),
        "steps": progress.steps,
        "tokens": progress.tokens,
    }
