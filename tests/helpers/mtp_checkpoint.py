"""Tiny random checkpoints with an MTP layer in the published layouts.

transformers writes a model of one layer more; its last one becomes the MTP layer.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from helpers.family_cases import CASES, Case, make_case

from tidemill.loading import bundled_models

_BEHIND = {"e": "enorm.weight", "h": "hnorm.weight", "join": "eh_proj.weight",
           "norm": "shared_head.norm.weight"}  # fmt: skip
_APART = {"e": "pre_fc_norm_embedding.weight", "h": "pre_fc_norm_hidden.weight",
          "join": "fc.weight", "norm": "norm.weight"}  # fmt: skip


class MtpModel(NamedTuple):
    """A checkpoint with an MTP layer.

    Attributes:
        folder: it.
        whole: transformers' model with the MTP layer's decoder layer as the last one.
        layers: of the model proper.
        own: its other tensors, torch: e, h, join, norm, as they are stored.
        plus: added to stored norms.
    """

    folder: Path
    whole: Any
    layers: int
    own: dict[str, Any]
    plus: float


def case_of(prefix: str, number: int = 0) -> Case:
    """A family's case."""
    return [case for case in CASES if case.prefix == prefix][number]


def make_mtp(case: Case, folder: Path, *, agrees: bool = False, **values: Any) -> MtpModel:
    """Write a checkpoint of a case.

    Args:
        case: its last layer has attention.
        folder: where.
        agrees: layers add little to the residual stream, and the MTP layer joins to the embedding
            alone: it guesses what the model does, mostly.
        values: of the config.
    """
    import torch
    from safetensors.torch import load_file, save_file

    count = case.values["num_hidden_layers"]
    apart = case.prefix.startswith("Qwen")
    config = {**case.values, "num_hidden_layers": count + 1, **values}
    if "layer_types" in config:
        config["layer_types"] = [*config["layer_types"], "full_attention"]
    elif apart:
        config["layer_types"] = ["linear_attention", *["full_attention"] * count]
    whole = make_case(replace(case, values=config), folder)
    norm = whole.model.norm.weight
    width = norm.shape[0]
    plus = 1.0 if apart else 0.0
    with torch.no_grad():
        if agrees:
            for name, weight in whole.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")) or (
                    name.endswith("experts.down_proj")
                ):
                    weight *= 0.005
        own = {
            "e": torch.rand(width) + 0.5 - plus,
            "h": torch.rand(width) + 0.5 - plus,
            "join": torch.randn(width, 2 * width) * (2 * width) ** -0.5,
            "norm": torch.rand(width) + 0.5 - plus,
        }
        if agrees:
            own["e"], own["norm"] = torch.full_like(norm, 1.0 - plus), norm.detach().clone()
            own["join"] = torch.cat([torch.eye(width), torch.zeros(width, width)], 1)
    whole.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    prefix = f"model.layers.{count}."
    base = "mtp." if apart else prefix
    if apart:
        for name in [n for n in tensors if n.startswith(prefix)]:
            tensors["mtp.layers.0." + name.removeprefix(prefix)] = tensors.pop(name)
    else:
        tensors[base + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        head = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
        tensors[base + "shared_head.head.weight"] = tensors[head].clone()
    names = _APART if apart else _BEHIND
    tensors |= {base + names[key]: tensor.clone() for key, tensor in own.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    written["num_hidden_layers"] = count
    if "layer_types" in written:
        written["layer_types"] = written["layer_types"][:count]
    written.pop("mlp_layer_types", None)
    written["mtp_num_hidden_layers" if apart else "num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(written))
    return MtpModel(folder, whole, count, own, plus)


def with_tokenizer(folder: Path) -> Path:
    """Give it brook's tokenizer, whose vocabulary it must have."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundled_models()["brook"] / name, folder / name)
    return folder


def reference_drafts(
    model: MtpModel, tokens: list[int], drafts: int, draw: Any, first: int = 0
) -> list[int]:
    """Tokens that the MTP layer drafts behind `tokens`, in double precision.

    Args:
        model: it.
        tokens: known ones.
        drafts: how many.
        draw: (logits float64 [vocabulary], number of the draft) -> token.
        first: position from which on the layer has read.
    """
    import torch

    whole = model.whole.double()
    whole.set_experts_implementation("eager")  # the others have no double precision
    decoder, eps = whole.model, model.whole.config.rms_norm_eps
    own = {key: tensor.double() for key, tensor in model.own.items()}

    def normed(x: Any, weight: Any) -> Any:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * (weight + model.plus)

    def rest(count: int) -> tuple[Any, Any]:
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf"), dtype=torch.float64).triu(1)
        return positions, mask[None, None]

    found: list[int] = []
    with torch.no_grad():
        states = _final(whole, model.layers, tokens)[
            first:-1
        ]  # of the last token nothing is computed
        for number in range(drafts):
            known = torch.tensor([*tokens, *found])
            both = [
                normed(decoder.embed_tokens(known[first + 1 :]), own["e"]),
                normed(states, own["h"]),
            ]
            x = (torch.cat(both, -1) @ own["join"].T)[None]
            positions, mask = rest(x.shape[1])
            y = decoder.layers[model.layers](
                x,
                attention_mask=mask,
                position_ids=positions,
                position_embeddings=decoder.rotary_emb(x, positions),
            )
            y = y[0] if isinstance(y, tuple) or y.dim() == 3 else y
            last = normed(y[-1], own["norm"])
            found.append(draw((whole.lm_head.weight @ last).numpy(), number))
            states = torch.cat([states, last[None]])
    return found


def _final(whole: Any, layers: int, tokens: list[int]) -> Any:
    """The model's final hidden states, float64 [tokens, width]."""
    import torch

    every = whole.model.layers
    whole.model.layers = every[:layers]
    try:
        return whole.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    finally:
        whole.model.layers = every


def greedy(logits: np.ndarray, number: int) -> int:
    """The likeliest token."""
    return int(logits.argmax())
