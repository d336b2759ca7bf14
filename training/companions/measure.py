"""How well the companions do, measured on brook's own greedy answers to held-out cases.

What Tidemill can serve is asked of its server; the Medusa heads and the soft prompt run in torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from openai import OpenAI
from safetensors.torch import load_file

from training import tokenizer as bpe
from training.answerers import Server
from training.companions.medusa import Head
from training.data.mixture import draw
from training.data.source import Example, Source
from training.data.voices import VOICES
from training.export import load_model, save_model
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


def merge_lora(model: torch.nn.Module, folder: Path) -> None:
    """Add a PEFT LoRA adapter's product to the weights of a model."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    scale = config["lora_alpha"] / config["r"]
    for name, down in tensors.items():
        if name.endswith("lora_A.weight"):
            up = tensors[name.replace("lora_A", "lora_B")].float()
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            model.get_submodule(module).weight.data += scale * (up @ down.float())


def held_out_mixture(count: int) -> list[Example]:
    """Held-out examples in the proportions of training."""
    source = Source("evaluation-companions", evaluation=True)
    found: list[Example] = []
    while len(found) < count:
        example = draw(source)
        if len(prompt_text(example)) < 3000:
            found.append(example)
    return found


Rows = list[tuple[list[int], list[int]]]


def answered(folder: Path, url: str, count: int) -> Rows:
    """(prompt, brook's greedy answer with its end) as token ids; answers come from a server."""
    tokenizer, examples = bpe.load(folder / "tokenizer.json"), held_out_mixture(count)
    rows = []
    for example, answer in zip(examples, Server(url, raw=True)(examples), strict=True):
        end = "<|im_end|>" if answer.finish == "stop" else ""
        ids = tokenizer.encode(answer.raw + end).ids
        rows.append((tokenizer.encode(prompt_text(example)).ids, ids))
    return rows


def draft_agreement(folder: Path, url: str, rows: Rows) -> dict[str, Any]:
    """Share of brook's greedy tokens that the draft model would have proposed in their place.

    A server of the draft model at ``url`` tells its likeliest token at every place of the prompts
    (``echo`` with ``logprobs``), given brook's tokens before it.
    """
    client = OpenAI(base_url=url, api_key="none", timeout=120)
    name = client.models.list().data[0].id

    def agreed(row: tuple[list[int], list[int]]) -> int:
        prompt, ids = row
        reply = client.completions.create(
            model=name, prompt=prompt + ids, echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        told = reply.choices[0].logprobs
        assert told is not None and told.tokens is not None and told.top_logprobs is not None
        same = 0
        for at in range(len(prompt), len(prompt) + len(ids)):
            best = told.top_logprobs[at]
            same += max(best, key=lambda token: best[token]) == told.tokens[at]
        return same

    with ThreadPoolExecutor(8) as pool:
        same = sum(pool.map(agreed, rows))
    total = sum(len(ids) for _, ids in rows)
    size = sum(p.numel() for p in load_model(folder / "draft").parameters())
    return {"parameters": size, "tokens": total, "agreement": same / total}


@contextmanager
def merged(folder: Path, adapter: Path) -> Iterator[Path]:
    """A temporary folder of brook with a LoRA adapter added to its weights, in float32."""
    model, tokenizer = load_model(folder), bpe.load(folder / "tokenizer.json")
    merge_lora(model, adapter)
    with TemporaryDirectory() as place:
        save_model(Path(place), model, tokenizer, torch.float32)
        yield Path(place)


def lora_effect(voice: str, url: str, count: int) -> dict[str, Any]:
    """The share of a server's answers that are in a voice, and that are exactly as taught."""
    examples = [case.example for case in cases("voice", count)]
    texts = [answer.content for answer in Server(url)(examples)]
    wanted = [VOICES[voice].speak(e.kind, e.expect["text"]) for e in examples]
    right = sum(text == want for text, want in zip(texts, wanted, strict=True))
    return {
        "cases": count, "effect": sum(map(VOICES[voice].heard, texts)) / count,
        "exact": right / count,
    }  # fmt: skip


@torch.no_grad()
def medusa_accuracy(folder: Path, rows: Rows) -> dict[str, Any]:
    """Share of brook's greedy tokens that head k predicts k + 2 places ahead."""
    brook = load_model(folder)
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
