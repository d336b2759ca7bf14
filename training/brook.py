"""Train brook: its tokenizer first, then the model. ``python -m training.brook --minutes 75``"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer

from training import tokenizer as bpe
from training.data.mixture import copied_words, corpus
from training.model import Shape, parameters_of
from training.render import prompt_text, target_text
from training.train import Plan, Trainer, keep_memory

RUNS = Path(__file__).with_name("runs")
RECORD = Path(__file__).with_name("record")
VOCABULARY = 3072


def make_tokenizer(folder: Path) -> Tokenizer:
    """Brook's tokenizer, learned once from 12,000 examples and then read back."""
    file = folder / "tokenizer.json"
    if not file.exists():
        texts = (prompt_text(e) + target_text(e) for e in corpus("tokenizer", 12000))
        bpe.save(bpe.learn(texts, copied_words(), VOCABULARY), file)
    return bpe.load(file)


def shape(tokenizer: Tokenizer) -> Shape:
    return Shape(vocab_size=tokenizer.get_vocab_size())


def worker(rank: int, world: int, folder: Path, plan: Plan) -> None:
    """One training process; rank 0 keeps the checkpoints."""
    keep_memory()
    if world > 1:
        # Linux shares the processor by session: each rank stands for itself beside other work.
        os.setsid()
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "rendezvous"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    tokenizer = make_tokenizer(folder)
    trainer = Trainer(plan, shape(tokenizer), tokenizer, rank, world)
    trainer.run()
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def train(folder: Path, plan: Plan) -> None:
    """Train brook, or go on with it, in one process per core (or one on a GPU)."""
    tokenizer = make_tokenizer(folder)
    print(f"{parameters_of(shape(tokenizer))} parameters", flush=True)
    (folder / "rendezvous").unlink(missing_ok=True)
    world = 1 if torch.cuda.is_available() else max(1, min(8, os.cpu_count() or 1))
    arguments = (world, folder, plan)
    torch.multiprocessing.spawn(worker, arguments, nprocs=world)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=RUNS)
    parser.add_argument("--from-minute", type=float, default=0.0, help="begin a later stretch here")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the learning rates")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        options.folder / "brook", options.minutes, options.seed,
        begin=options.from_minute, rate=options.rate,
    )  # fmt: skip
    train(options.folder, plan)


if __name__ == "__main__":
    main()
