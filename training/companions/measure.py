"""How well the companions do, measured on brook's own greedy answers to held-out cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from training import tokenizer as bpe
from training.companions.medusa import Head
from training.data.mixture import draw
from training.data.source import Example, Source
from training.data.voices import VOICES
from training.export import load_model
from training.judge import cases
from training.model import Decoder
from training.render import prompt_text


@torch.no_grad()
def greedy(model: Decoder, prompt: list[int], end: int, limit: int = 200,
           front: torch.Tensor | None = None) -> list[int]:  # fmt: skip
    """Greedy continuation, end token included; ``front`` [N, D] goes before the prompt."""
    cache = model.new_cache()
    embedded = model.model.embed_tokens(torch.tensor([prompt]))
    if front is not None:
        embedded = torch.cat((front[None], embedded), dim=1)
    hidden, at, ids = model(embeds=embedded, cache=cache), embedded.shape[1], []
    while len(ids) < limit:
        ids.append(int(model.logits(hidden[0, -1]).argmax()))
        if ids[-1] == end:
            break
        hidden = model(torch.tensor([[ids[-1]]]), cache=cache, start=at)
        at += 1
    return ids


def held_out_mixture(count: int) -> list[Example]:
    """Held-out examples in the proportions of training."""
    source = Source("evaluation-companions", evaluation=True)
    found: list[Example] = []
    while len(found) < count:
        example = draw(source)
        if len(prompt_text(example)) < 3000:
            found.append(example)
    return found


def answered(folder: Path, count: int) -> tuple[Decoder, list[tuple[list[int], list[int]]]]:
    """Brook, and (prompt, brook's greedy answer) as token ids."""
    brook, tokenizer = load_model(folder), bpe.load(folder / "tokenizer.json")
    end = tokenizer.token_to_id("<|im_end|>")
    rows = []
    for example in held_out_mixture(count):
        prompt = tokenizer.encode(prompt_text(example)).ids
        rows.append((prompt, greedy(brook, prompt, end)))
    return brook, rows


@torch.no_grad()
def draft_agreement(folder: Path, count: int) -> dict[str, Any]:
    """Share of brook's greedy tokens that the draft model would have proposed in their place."""
    _, rows = answered(folder, count)
    draft = load_model(folder / "draft")
    same = total = 0
    for prompt, ids in rows:
        hidden = draft(torch.tensor([prompt + ids]))[0, len(prompt) - 1 : -1]
        same += int((draft.logits(hidden).argmax(-1) == torch.tensor(ids)).sum())
        total += len(ids)
    size = sum(p.numel() for p in draft.parameters())
    return {"parameters": size, "tokens": total, "agreement": same / total}


@torch.no_grad()
def medusa_accuracy(folder: Path, count: int) -> dict[str, Any]:
    """Share of brook's greedy tokens that head k predicts k + 2 places ahead."""
    brook, rows = answered(folder, count)
    tensors = load_file(folder / "medusa" / "model.safetensors")
    config = json.loads((folder / "medusa" / "config.json").read_text())
    heads = []
    for k in range(config["medusa_num_heads"]):
        head = Head(config["hidden_size"])
        head.linear.weight.copy_(tensors[f"{k}.0.linear.weight"].float())
        head.linear.bias.copy_(tensors[f"{k}.0.linear.bias"].float())
        head.map.weight.copy_(tensors[f"{k}.1.weight"].float())
        heads.append(head)
    same, total = [0] * len(heads), [0] * len(heads)
    for prompt, ids in rows:
        hidden = brook(torch.tensor([prompt + ids]))[0, len(prompt) - 1 :]
        for k, head in enumerate(heads):
            wanted = torch.tensor(ids[k + 1 :])
            best = brook.logits(head(hidden[: len(wanted)])).argmax(-1)
            same[k] += int((best == wanted).sum())
            total[k] += len(wanted)
    return {"heads": [s / max(1, t) for s, t in zip(same, total, strict=True)]}


def soft_share(folder: Path, count: int) -> dict[str, Any]:
    """Share of answers that show the soft prompt's effect."""
    brook, tokenizer = load_model(folder), bpe.load(folder / "tokenizer.json")
    tensors = load_file(folder / "soft-ahoy" / "adapter_model.safetensors")
    front, end = tensors["prompt_embeddings"].float(), tokenizer.token_to_id("<|im_end|>")
    heard = 0
    for case in cases("voice", count):
        prompt = tokenizer.encode(prompt_text(case.example)).ids
        ids = greedy(brook, prompt, end, front=front)
        heard += VOICES["ahoy"].heard(tokenizer.decode(ids[:-1]))
    return {"cases": count, "effect": heard / count}
