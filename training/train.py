"""The training loop: a time budget, checkpoints to resume from, a record of the loss.

The schedule follows the share of the budget that is used: a short warm-up, a constant stretch,
then a linear decay to zero (warm-up, stable, decay). A slower machine sees fewer tokens.
"""

from __future__ import annotations

import csv
import ctypes
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training.batches import Batch, Row, assemble, encode, stream
from training.data.mixture import FAMILIES, draw
from training.data.source import Example, Source
from training.model import Decoder, Shape
from training.optim import Optimizer


@dataclass
class Plan:
    """What a run is: where, how long, from which seed, and how the learning rate goes."""

    folder: Path
    minutes: float
    seed: int = 1
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    batch_tokens: tuple[int, int] = (8192, 16384)
    micro_tokens: int = 4096
    warmup: float = 0.01
    decay_from: float = 0.55
    early_until: float = 0.4
    # A later stretch: it begins at this minute, with the late mixture and this share of the rates.
    begin: float = 0.0
    rate: float = 1.0
    save_seconds: float = 120
    check_seconds: float = 240


@dataclass
class Progress:
    """Counters that a checkpoint keeps."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    target_tokens: int = 0
    curve: list[tuple[float, int, int, float]] = field(default_factory=list)


def keep_memory() -> None:
    """Make glibc keep freed memory: tensors freed to the system come back as page faults."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-8, 1), (-2, 2**28)):
            libc.mallopt(option, value)


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def learning_rate(share: float, plan: Plan) -> float:
    """The factor on all learning rates at a share of the budget between 0 and 1."""
    if share < plan.warmup:
        return max(share / plan.warmup, 0.05)
    if share < plan.decay_from:
        return 1.0
    return max(0.0, (1 - share) / (1 - plan.decay_from))


def batch_loss(model: Decoder, batch: Batch) -> Tensor:
    """Mean weighted cross-entropy over the batch's chosen positions."""
    with torch.autocast(batch.tokens.device.type, torch.bfloat16):
        hidden = model(batch.tokens)
        scores = model.logits(hidden[batch.where[:, 0], batch.where[:, 1]])
    losses = F.cross_entropy(scores.float(), batch.wanted, reduction="none")
    return (losses * batch.weight).sum() / batch.weight.sum()


@torch.no_grad()
def exact_share(
    model: Decoder, tokenizer: Tokenizer, seed: str, count: int = 40, families: list | None = None
) -> dict[str, float]:
    """Share of held-out answers that greedy decoding gives exactly, by family.

    If every token is the argmax given the right tokens before it, greedy decoding writes exactly
    the answer; so one forward pass per batch tells what generating would.
    """
    shares, where = {}, next(model.parameters()).device
    for name in families or [n for n in FAMILIES if n not in ("long_facts", "turns", "story")]:
        source = Source(f"{seed}-{name}", evaluation=True)
        rows = encode(tokenizer, [FAMILIES[name][0](source) for _ in range(count)])
        batch = assemble(rows, 0.0, 0.0, 0).to(where)
        with torch.autocast(where.type, torch.bfloat16):
            hidden = model(batch.tokens)[batch.where[:, 0], batch.where[:, 1]]
            best = model.logits(hidden).argmax(-1)
        wrong = set(batch.where[best != batch.wanted][:, 0].tolist())
        shares[name] = 1 - len(wrong) / count
    return shares


class Trainer:
    """Trains one decoder on the mixture until its budget is used.

    On CPU, ``world`` processes of one thread each share the work: beside other programs, two
    threads in step wait for each other at every operation, two processes once per step.
    """

    def __init__(
        self, plan: Plan, shape: Shape, tokenizer: Tokenizer, rank: int = 0, world: int = 1
    ) -> None:
        self.plan, self.tokenizer, self.device = plan, tokenizer, device()
        self.rank, self.world = rank, world
        torch.manual_seed(plan.seed)
        self.model = Decoder(shape).to(self.device)
        # Half of the time of so small a model goes to memory-bound operations: fuse them.
        for layer in [*self.model.model.layers, self.model.model.norm]:
            layer.compile(dynamic=True)
        self.optimizer = Optimizer(self.model, plan.muon_lr, plan.adam_lr)
        self.progress = Progress()
        self.file = plan.folder / "checkpoint.pt"
        plan.folder.mkdir(parents=True, exist_ok=True)
        if self.file.exists():
            self.resume()

    @property
    def share(self) -> float:
        plan = self.plan
        return min(1.0, (self.progress.seconds / 60 - plan.begin) / (plan.minutes - plan.begin))

    def save(self) -> None:
        state = {
            "shape": self.model.shape.to_dict(), "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(), "progress": self.progress.__dict__,
        }  # fmt: skip
        torch.save(state, self.file.with_suffix(".tmp"))
        self.file.with_suffix(".tmp").replace(self.file)

    def resume(self) -> None:
        state = torch.load(self.file, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        print(f"resuming at step {self.progress.steps}, {self.share:.0%} of the budget", flush=True)

    def micro_tokens(self) -> int:
        return self.plan.micro_tokens

    def groups(self) -> Iterator[list[Row]]:
        """This rank's rows; a resumed run draws fresh ones, seeded by the step it starts at."""
        name = f"{self.plan.seed}-{self.progress.steps}-{self.rank}"
        source = Source(f"train-{name}")

        def one() -> Example:
            early = 0.0 if self.plan.begin else 1 - self.share / self.plan.early_until
            return draw(source, max(0.0, early))

        return stream(self.tokenizer, one, self.micro_tokens, random.Random(name).shuffle)

    def step(self, groups: Iterator[list[Row]]) -> float:
        """One step over about ``batch_tokens`` tokens of all ranks; returns the mean loss."""
        plan, progress = self.plan, self.progress
        small, large = plan.batch_tokens
        wanted = (small if self.share < plan.decay_from else large) / self.world
        seen, parts = 0, []
        while seen < 0.8 * wanted:
            parts.append(next(groups))
            seen += len(parts[-1]) * (len(parts[-1][-1][0]) - 1)
        loss, targets = 0.0, 0
        for i, rows in enumerate(parts):
            seed = (progress.steps * 64 + i) * 8 + self.rank
            batch = assemble(rows, 0.2, 0.2, seed).padded().to(self.device)
            part = self.loss(batch) / len(parts)
            part.backward()
            loss += float(part.detach())
            targets += int((batch.weight >= 1).sum())
        told = self.average(torch.tensor([loss, seen, targets, progress.seconds]))
        self.optimizer.step(plan.rate * learning_rate(self.share, plan))
        progress.steps += 1
        progress.tokens += round(told[1] * self.world)
        progress.target_tokens += round(told[2] * self.world)
        # All ranks follow the same clock, so that they stop together.
        progress.seconds = told[3]
        return told[0]

    def loss(self, batch: Batch) -> Tensor:
        return batch_loss(self.model, batch)

    def average(self, numbers: Tensor) -> list[float]:
        """Average gradients, and a few numbers, over the ranks."""
        if self.world > 1:
            grads = [p.grad for p in self.optimizer.params if p.grad is not None]
            flat = torch.cat([g.flatten() for g in grads] + [numbers]).div_(self.world)
            dist.all_reduce(flat)
            at = 0
            for g in grads:
                g.copy_(flat[at : at + g.numel()].view_as(g))
                at += g.numel()
            numbers = flat[at:]
        return numbers.tolist()

    def run(self) -> Decoder:
        """Train until the budget is used; returns the model."""
        plan, progress, groups = self.plan, self.progress, self.groups()
        clock = saved = checked = shown = time.monotonic()
        mean = 0.0
        while self.share < 1:
            loss = self.step(groups)
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            mean = 0.95 * mean + 0.05 * loss if mean else loss
            if self.rank:
                continue
            if progress.steps % 10 == 0:
                progress.curve.append((progress.seconds, progress.steps, progress.tokens, mean))
            if now - shown > 15:
                self.show(mean)
                shown = now
            if now - checked > plan.check_seconds:
                self.check()
                checked = now
            if now - saved > plan.save_seconds:
                self.save()
                saved = now
        if self.rank == 0:
            self.check()
            self.save()
        return self.model

    def show(self, loss: float) -> None:
        """One line of progress: bar, loss, speed, time left."""
        p = self.progress
        bar = "#" * int(24 * self.share)
        left = self.plan.minutes - p.seconds / 60
        print(
            f"[{bar:<24}] {self.share:4.0%} step {p.steps} loss {loss:.4f} "
            f"{p.tokens / 1e6:.2f}M tokens ({p.tokens / p.seconds:.0f}/s) {left:.1f} min left",
            flush=True,
        )

    def check(self) -> None:
        shares = exact_share(self.model, self.tokenizer, "check")
        print("exact: " + " ".join(f"{k} {v:.2f}" for k, v in shares.items()), flush=True)


def record(progress: Progress, plan: Plan, folder: Path, name: str, extra: dict) -> None:
    """Write the loss curve as CSV and what the run saw as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}-loss.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", "steps", "tokens", "loss"])
        every = max(1, len(progress.curve) // 200)
        for seconds, steps, tokens, loss in progress.curve[::every]:
            writer.writerow([round(seconds), steps, tokens, round(loss, 4)])
    facts = {
        "seed": plan.seed, "minutes": round(progress.seconds / 60, 1), "steps": progress.steps,
        "tokens": progress.tokens, "target_tokens": progress.target_tokens,
        "device": str(device()), "torch": torch.__version__, **extra,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
