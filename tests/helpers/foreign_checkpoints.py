"""Tiny random checkpoints of architectures that no family describes, and what transformers says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.tiny_text import CHAT_TEMPLATE, tokenizer_json

VOCAB = 262

# model_type -> config keys; all are of a shape of their own.
CASES: dict[str, dict[str, Any]] = {
    "codegen": {
        **{"n_positions": 256, "n_ctx": 256, "n_embd": 32, "n_layer": 2, "n_head": 4},
        **{"rotary_dim": 4, "n_inner": 64},
    },
    "persimmon": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "max_position_embeddings": 256},
    },
    "xglm": {
        **{"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4},
        "max_position_embeddings": 256,
    },
    "mamba": {
        **{"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "conv_kernel": 4},
        **{"time_step_rank": 4, "tie_word_embeddings": False},
    },
    "recurrent_gemma": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "lru_width": 32},
        **{"num_attention_heads": 4, "num_key_value_heads": 1, "attention_window_size": 16},
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "jamba": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_period": 4},
        **{"attn_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2},
        **{"mamba_d_state": 8, "mamba_dt_rank": 4, "max_position_embeddings": 256},
        **{"use_mamba_kernels": False},
    },
    "rwkv": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
        **{"intermediate_size": 64, "context_length": 256},
    },
}


def make(name: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint folder with a byte tokenizer; float32. `changes`: to its config.json alone."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {**CASES[name], "vocab_size": VOCAB, "bos_token_id": 256, "eos_token_id": 257}
    config = CONFIG_MAPPING[name](pad_token_id=0, **values)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Wide enough that greedy answers do not hang on rounding.
            if parameter.ndim == 2 and "A_log" not in key:
                parameter.normal_(0.0, 1.2 * parameter.shape[1] ** -0.5)
            if "embed" in key or "wte" in key or "head" in key:
                parameter.normal_(0.0, 0.7)
    model.save_pretrained(folder)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, **changes}))
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    special = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def generated(folder: Path, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """What transformers' own generate says to each prompt alone: greedy, `count` tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts:
        found = model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
        )
        answers.append(found[0, len(prompt) :].tolist())
    return answers
