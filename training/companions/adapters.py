"""LoRA adapters and the soft prompt, in PEFT's file layout.

LoRA (Hu et al., 2021): W x + (alpha / r) B A x with A [r, in] and B [out, r]. Prompt tuning
(Lester et al., 2021): learned vectors in front of the embedded prompt.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.batches import Batch
from training.companions.fit import batches, fit
from training.data.source import Source
from training.data.voices import spoken
from training.model import Decoder
from training.train import batch_loss

RANK, ALPHA = 8, 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VECTORS = 16


class LoraLinear(nn.Module):
    """A frozen linear map with a low-rank addition; ``B`` starts at zero."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.a = nn.Parameter(torch.randn(RANK, inner.in_features) * inner.in_features**-0.5)
        self.b = nn.Parameter(torch.zeros(inner.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + F.linear(F.linear(x, self.a), self.b) * (ALPHA / RANK)


def add_lora(model: Decoder) -> dict[str, LoraLinear]:
    """Freeze a decoder and wrap its target maps in place; the wrappers by their module's name."""
    for p in model.parameters():
        p.requires_grad_(False)
    names = [n for n, m in model.named_modules() if n.rsplit(".", 1)[-1] in TARGETS]
    added = {}
    for name in names:
        parent, leaf = name.rsplit(".", 1)
        wrapped = LoraLinear(model.get_submodule(name)).to(next(model.parameters()).device)
        setattr(model.get_submodule(parent), leaf, wrapped)
        added[name] = wrapped
    return added


def write(folder: Path, file: str, tensors: dict[str, Tensor], config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept = {k: v.detach().cpu().to(torch.bfloat16).contiguous() for k, v in tensors.items()}
    save_file(kept, folder / file, metadata={"format": "pt"})
    (folder / file).chmod(0o644)
    name = "config.json" if file == "model.safetensors" else "adapter_config.json"
    (folder / name).write_text(json.dumps(config, indent=2) + "\n")


def earlier(folder: Path, warm: bool) -> dict[str, Tensor]:
    """What an earlier run wrote, to start from when brook has changed only a little."""
    file = folder / "adapter_model.safetensors"
    if not (warm and file.exists()):
        return {}
    return {name: tensor.float() for name, tensor in load_file(file).items()}


def train_lora(
    brook: Decoder,
    tokenizer: Tokenizer,
    voice: str,
    output: Path,
    minutes: float,
    warm: bool = False,
) -> dict[str, float]:
    """Train one adapter on conversations in a voice; ``brook`` is changed in place."""
    torch.manual_seed(3)
    added = add_lora(brook)
    source = Source(f"voice-{voice}")
    data = batches(tokenizer, lambda: spoken(source, voice), voice, tokens=2048)
    for name, tensor in earlier(output, warm).items():
        module, part = name.removeprefix("base_model.model.").rsplit(".lora_", 1)
        parameter = added[module].a if part.startswith("A") else added[module].b
        parameter.data.copy_(tensor)
    params = [p for m in added.values() for p in (m.a, m.b)]
    where = next(brook.parameters()).device
    facts = fit(params, data, lambda b, _: batch_loss(brook, b), minutes, 0.003, voice, where)
    tensors = {}
    for name, module in added.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = module.a
        tensors[f"base_model.model.{name}.lora_B.weight"] = module.b
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "brook",
        "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
        "target_modules": TARGETS, "fan_in_fan_out": False, "inference_mode": True,
    }  # fmt: skip
    write(output, "adapter_model.safetensors", tensors, config)
    return facts


def soft_loss(brook: Decoder, vectors: Tensor, batch: Batch) -> Tensor:
    """The ordinary loss with ``vectors`` [N, D] in front of every row."""
    with torch.autocast(batch.tokens.device.type, torch.bfloat16):
        embedded = brook.model.embed_tokens(batch.tokens)
        front = vectors[None].expand(len(embedded), -1, -1).to(embedded.dtype)
        hidden = brook(embeds=torch.cat((front, embedded), dim=1))
        at = (batch.where[:, 0], batch.where[:, 1] + len(vectors))
        scores = brook.logits(hidden[at])
    losses = F.cross_entropy(scores.float(), batch.wanted, reduction="none")
    return (losses * batch.weight).sum() / batch.weight.sum()


def train_soft_prompt(
    brook: Decoder, tokenizer: Tokenizer, output: Path, minutes: float, warm: bool = False
) -> dict[str, float]:
    """Train 16 vectors that make brook greet like a sailor."""
    for p in brook.parameters():
        p.requires_grad_(False)
    table = brook.model.embed_tokens.weight
    start = tokenizer.encode("You are brook. Begin with Ahoy and end with Fair winds.").ids
    rows = [start[i % len(start)] for i in range(VECTORS)]
    vectors = nn.Parameter(table[rows].clone())
    for tensor in earlier(output, warm).values():
        vectors.data.copy_(tensor)
    source = Source("voice-ahoy")
    data = batches(tokenizer, lambda: spoken(source, "ahoy"), "ahoy", tokens=1536)
    facts = fit(
        [vectors], data, lambda b, _: soft_loss(brook, vectors, b), minutes, 0.02, "ahoy",
        table.device,
    )  # fmt: skip
    config = {
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "base_model_name_or_path": "brook",
        "num_virtual_tokens": VECTORS, "token_dim": table.shape[1], "inference_mode": True,
    }  # fmt: skip
    write(output, "adapter_model.safetensors", {"prompt_embeddings": vectors}, config)
    return facts
