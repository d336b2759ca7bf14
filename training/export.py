"""Checkpoints to files: the Hugging Face layout that ships, and GGUF.

``python -m training.export`` writes the newest checkpoint to ``src/tidemill/assets/brook``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from training import tokenizer as bpe
from training.model import Decoder, Shape
from training.render import TEMPLATE

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "src" / "tidemill" / "assets" / "brook"
RUNS = Path(__file__).with_name("runs")


def load_checkpoint(file: Path) -> tuple[Decoder, dict]:
    """A decoder in float32 and the whole saved state."""
    state = torch.load(file, map_location="cpu")
    model = Decoder(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model, state


def load_model(folder: Path) -> Decoder:
    """The decoder of an exported folder, in float32 with the shipped (bf16) values."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    names = Shape.__dataclass_fields__
    model = Decoder(Shape(**{k: v for k, v in config.items() if k in names}))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({k: v.float() for k, v in tensors.items()})
    return model


def average(model: Decoder, other: Decoder, share: float) -> None:
    """Make ``model`` the weighted mean of two runs of one ancestor, in place; ``share`` is its own.

    Runs that part late stay in one basin, and the mean of their weights is often better than either
    (Wortsman et al., 2022, "Model soups").
    """
    theirs = other.state_dict()
    model.load_state_dict(
        {k: share * v + (1 - share) * theirs[k] for k, v in model.state_dict().items()}
    )


def config_of(shape: Shape, tokenizer: Tokenizer) -> dict:
    """``config.json`` of a ``Qwen3ForCausalLM``."""
    end = tokenizer.token_to_id("<|im_end|>")
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        **shape.to_dict(),
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": None,
        "max_window_layers": shape.num_hidden_layers, "initializer_range": 0.02,
        "rope_scaling": None, "use_cache": True, "torch_dtype": "bfloat16",
        "bos_token_id": None, "eos_token_id": end,
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
    }  # fmt: skip


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def save_tokenizer(folder: Path, tokenizer: Tokenizer, context: int) -> None:
    """Tokenizer, its settings, the chat template and the generation defaults."""
    bpe.save(tokenizer, folder / "tokenizer.json")
    template = TEMPLATE.read_text()
    (folder / "chat_template.jinja").write_text(template)
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False,
        "add_prefix_space": False, "clean_up_tokenization_spaces": False, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "model_max_length": context, "chat_template": template,
    })  # fmt: skip
    ends = [tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
    write_json(folder / "generation_config.json", {
        "do_sample": False, "eos_token_id": ends, "pad_token_id": ends[1],
    })  # fmt: skip


def save_model(
    folder: Path, model: Decoder, tokenizer: Tokenizer, dtype: torch.dtype = torch.bfloat16
) -> None:
    """The whole folder: weights in ``dtype``, config, tokenizer, template."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().to(dtype).contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = config_of(model.shape, tokenizer)
    config["torch_dtype"] = str(dtype).removeprefix("torch.")
    write_json(folder / "config.json", config)
    save_tokenizer(folder, tokenizer, model.shape.max_position_embeddings)


# Hugging Face parameter name inside a layer: GGUF name inside a block.
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def gguf_name(name: str) -> str:
    """``model.layers.0.mlp.up_proj.weight`` to ``blk.0.ffn_up.weight``."""
    if name.startswith("model.layers."):
        _, _, index, rest = name.split(".", 3)
        return f"blk.{index}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight"}[name]  # fmt: skip


def save_gguf(file: Path, model: Decoder, tokenizer: Tokenizer, half: bool = True) -> None:
    """A GGUF file (architecture ``qwen3``); matrices in f16, or all in f32."""
    import gguf

    shape = model.shape
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(file), "qwen3")
    writer.add_name("brook")
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    add_vocabulary(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        wide = tensor.ndim == 1 or not half
        values = tensor.detach().to(torch.float32 if wide else torch.float16)
        writer.add_tensor(gguf_name(name), as_numpy(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_numpy(values: Tensor):
    return values.contiguous().numpy()


def add_vocabulary(writer, tokenizer: Tokenizer) -> None:
    """Tokens, merges and the chat template, as GGUF readers expect of a byte-level BPE."""
    import gguf

    described = json.loads(tokenizer.to_str())
    by_id = {i: t for t, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    kinds = gguf.TokenType
    added = {
        t["id"]: kinds.CONTROL if t["special"] else kinds.USER_DEFINED
        for t in described["added_tokens"]
    }
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([by_id[i] for i in range(len(by_id))])
    writer.add_token_types([added.get(i, kinds.NORMAL) for i in range(len(by_id))])
    writer.add_token_merges([" ".join(m) for m in described["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    writer.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=RUNS / "brook" / "checkpoint.pt")
    parser.add_argument("--output", type=Path, default=ASSETS)
    parser.add_argument("--average", type=Path, help="average with the weights of this checkpoint")
    parser.add_argument("--share", type=float, default=0.6, help="the first one's in the average")
    parser.add_argument("--gguf", type=Path, help="also write a GGUF file (f16)")
    options = parser.parse_args()
    model, state = load_checkpoint(options.checkpoint)
    if options.average:
        average(model, load_checkpoint(options.average)[0], options.share)
    tokenizer = bpe.load(RUNS / "tokenizer.json")
    save_model(options.output, model, tokenizer)
    if options.gguf:
        save_gguf(options.gguf, model, tokenizer)
    size = sum(f.stat().st_size for f in options.output.rglob("*") if f.is_file())
    print(f"step {state['progress']['steps']}: {size / 1e6:.2f} MB in {options.output.name}")


if __name__ == "__main__":
    main()
