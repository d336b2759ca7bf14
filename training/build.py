"""Everything in order: brook, its companions, the files that ship, the evaluation.

``python -m training.build --minutes 75 --companion-minutes 25``; ``make brook`` calls it. A part
that is done is not done again, and brook resumes from its checkpoint; remove ``training/runs`` to
begin anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.multiprocessing

from training import brook
from training import tokenizer as bpe
from training.companions.adapters import train_lora, train_soft_prompt
from training.companions.draft import train_draft
from training.companions.eagle import train_eagle
from training.companions.medusa import train_medusa
from training.export import ASSETS, load_checkpoint, load_model, save_gguf, save_model
from training.model import Decoder
from training.plot import plot
from training.train import Plan, Progress, device, keep_memory, record

RECORD = Path(__file__).with_name("record")
# Shares of the companions' time on the two processes that run side by side.
FIRST = {"draft": 0.75, "soft-ahoy": 0.25}
SECOND = {"lora-ripple": 0.35, "lora-verse": 0.2, "medusa": 0.15, "eagle": 0.3}


def finish_brook(folder: Path, minutes: float, seed: int, output: Path, written: Path) -> None:
    """Train what is left of brook's budget, write its files and the record of the run."""
    plan = Plan(folder / "brook", minutes, seed)
    brook.train(folder, plan)
    model, state = load_checkpoint(folder / "brook" / "checkpoint.pt")
    tokenizer = bpe.load(folder / "tokenizer.json")
    save_model(output, model, tokenizer)
    save_gguf(folder / "brook-f16.gguf", model, tokenizer)
    progress = Progress(**state["progress"])
    shape = {"parameters": sum(p.numel() for p in model.parameters()), **model.shape.to_dict()}
    record(progress, plan, written, "brook", {"shape": shape})
    plot(written / "brook-loss.csv", written / "brook-loss.png")


def one_companion(
    name: str, folder: Path, output: Path, minutes: float, warm: bool = False
) -> dict[str, float]:
    """Train one companion from the exported brook."""
    tokenizer = bpe.load(output / "tokenizer.json")
    model: Decoder = load_model(output).to(device())
    if name == "draft" or name.startswith("lora-"):
        # The others run for so short a time that compiling would not pay.
        for layer in [*model.model.layers, model.model.norm]:
            layer.compile(dynamic=True)
    if name == "draft":
        return train_draft(model, tokenizer, folder, output / name, minutes, warm)
    if name == "medusa":
        return train_medusa(model, tokenizer, output / name, minutes)
    if name == "eagle":
        return train_eagle(model, tokenizer, output / name, minutes, warm)
    if name.startswith("lora-"):
        voice = name.removeprefix("lora-")
        return train_lora(model, tokenizer, voice, output / name, minutes, warm)
    return train_soft_prompt(model, tokenizer, output / name, minutes, warm)


def companions(
    rank: int, folder: Path, output: Path, minutes: float, names: list[str], warm: bool
) -> None:
    """One process's share of the companions; a finished one is marked in ``folder``."""
    keep_memory()
    if device().type == "cpu":
        os.setsid()
        torch.set_num_threads(1)
    for name, share in (FIRST if rank == 0 else SECOND).items():
        mark = folder / f"{name}.json"
        if (names and name not in names) or (mark.exists() and (output / name).exists()):
            continue
        facts = one_companion(name, folder, output, minutes * share, warm)
        mark.write_text(json.dumps(facts) + "\n")


def gather_companions(folder: Path, written: Path) -> None:
    """Put what each companion's run saw into one file of the record."""
    names = [*FIRST, *SECOND]
    found = {n: json.loads((folder / f"{n}.json").read_text()) for n in names
             if (folder / f"{n}.json").exists()}  # fmt: skip
    written.mkdir(parents=True, exist_ok=True)
    (written / "companions.json").write_text(json.dumps(found, indent=1) + "\n")


def evaluate(output: Path, written: Path, count: int) -> None:
    command = [sys.executable, "-m", "training.evaluate", "--serve", "--companions"]
    command += ["--folder", str(output), "--record", str(written), "--count", str(count)]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=75, help="brook's time")
    parser.add_argument("--companion-minutes", type=float, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=brook.RUNS, help="checkpoints")
    parser.add_argument("--output", type=Path, default=ASSETS, help="the files that ship")
    parser.add_argument("--only", nargs="*", default=[], help="train these companions alone")
    parser.add_argument("--warm", action="store_true", help="go on from earlier companions")
    parser.add_argument("--record", type=Path, default=RECORD, help="curve and evaluation")
    parser.add_argument("--cases", type=int, default=200, help="of each kind in the evaluation")
    parser.add_argument("--no-evaluation", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    steps: list[Callable[[], None]] = []
    if not options.only:
        steps.append(lambda: finish_brook(
            options.folder, options.minutes, options.seed, options.output,
            options.record))  # fmt: skip
    arguments = (options.folder, options.output, options.companion_minutes, options.only,
                 options.warm)  # fmt: skip
    steps.append(lambda: torch.multiprocessing.spawn(companions, arguments, nprocs=2))
    steps.append(lambda: gather_companions(options.folder, options.record))
    if not options.no_evaluation:
        steps.append(lambda: evaluate(options.output, options.record, options.cases))
    for step in steps:
        step()


if __name__ == "__main__":
    main()
