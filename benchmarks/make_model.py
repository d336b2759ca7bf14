"""Random-weight checkpoints of real models' exact shapes, for benchmarks.

    .venv/bin/python benchmarks/make_model.py qwen3-0.6b FOLDER [--layers N] [--gguf q8_0 FILE]

Writes a Hugging Face folder (bfloat16 safetensors, the real config's values) with a real
vocabulary, taken from a GGUF vocabulary file; with --gguf also that file. Weights are normal with a
standard deviation of 0.02, norms 1: activations stay in a sane range, and the text is nonsense.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.convert.gguf.names import layout
from tidemill.loading import open_model
from tidemill.loading.formats import gguf
from tidemill.models import quantization
from tidemill.models.naming import Rules
from tidemill.models.registry import FAMILIES, family_for_config
from tidemill.models.spec import DecoderSpec, Rope, inverse_frequencies
from tidemill.text.gguf_library import tokenizer_from_gguf
from tidemill.text.gguf_vocab import special_tokens

VOCABULARIES = Path(__file__).resolve().parents[2] / "shared" / "data" / "vocab"
WEIGHT_STD = 0.02

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' "
    "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_HEADERS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + "
    "'<|end_header_id|>\\n\\n' + m['content'] + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{% endif %}"
)

# name -> (config.json, vocabulary file, chat template, end tokens).
SHAPES: dict[str, tuple[dict[str, Any], str, str, list[int]]] = {
    "qwen3-0.6b": (
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000,
            "rope_scaling": None,
            "attention_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": 28,
            "tie_word_embeddings": True,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "torch_dtype": "bfloat16",
        },
        "ggml-vocab-qwen2.gguf",
        _CHATML,
        [151645, 151643],
    ),
    "llama-3.2-1b": (
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": 128000,
            "eos_token_id": 128009,
            "torch_dtype": "bfloat16",
        },
        "ggml-vocab-llama-bpe.gguf",
        _HEADERS,
        [128009, 128001],
    ),
}


def stored_names(rules: Rules, spec: DecoderSpec) -> dict[str, str]:
    """canonical -> stored name, by the family's own rules turned around."""
    return {name: stored_name(rules, name) for name in spec.expected_tensors()}


def stored_name(rules: Rules, name: str) -> str:
    """The first stored name that a family's rules read as a canonical one."""
    for stored, canonical in rules:
        if canonical is None:
            continue
        pattern = re.sub(r"\\{(\w)\\}", r"(?P<\1>[^.]+?)", re.escape(canonical))
        found = re.fullmatch(pattern, name)
        if found is not None:
            return stored.format(**found.groupdict())
    raise KeyError(f"no rule for {name}")


def to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even; the values here are finite."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, spec: DecoderSpec, rules: Rules, seed: int) -> None:
    """Write all tensors, one at a time."""
    names = stored_names(rules, spec)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for canonical, shape in spec.expected_tensors().items():
        end = offset + 2 * math.prod(shape)
        header[names[canonical]] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for i, (canonical, shape) in enumerate(spec.expected_tensors().items()):
            if canonical.endswith("norm.weight"):
                values = np.ones(shape, np.float32)
            else:
                values = np.random.default_rng([seed, i]).standard_normal(shape, np.float32)
                values *= WEIGHT_STD
            file.write(to_bfloat16(values).tobytes())


def write_text_side(folder: Path, shape: str, vocabulary: Path) -> None:
    """tokenizer.json, its config and the generation config."""
    config, _, template, ends = SHAPES[shape]
    metadata = gguf.read_file(vocabulary).metadata
    vocab = {k: v for k, v in metadata.items() if k.startswith("tokenizer.")}
    tokenizer, _ = tokenizer_from_gguf(vocab)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {**special_tokens(vocab), "eos_token": tokenizer.id_to_token(ends[0])}
    settings = {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": ends}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))


def make_folder(
    shape: str, folder: Path, *, seed: int = 0, layers: int | None = None,
    vocabulary: Path | None = None, tokenizer: bool = True,
) -> None:  # fmt: skip
    """Write the checkpoint folder; config.json comes last, so that its presence says complete."""
    config = dict(SHAPES[shape][0])
    if layers is not None:
        config["num_hidden_layers"] = layers
    folder.mkdir(parents=True, exist_ok=True)
    family = family_for_config(config)
    write_safetensors(folder / "model.safetensors", family.spec(config), family.rules, seed)
    if tokenizer:
        source = vocabulary or VOCABULARIES / SHAPES[shape][1]
        if not source.is_file():
            raise SystemExit(
                f"{source} is missing: give --vocabulary FILE (a GGUF file with this model's "
                "vocabulary) or --no-tokenizer"
            )
        write_text_side(folder, shape, source)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def make_gguf(folder: Path, path: Path, kind: str) -> None:
    """The folder's model as a GGUF file (through the `gguf` package's writer and quantizer)."""
    import gguf as package

    files = open_model(folder)
    spec = files.spec
    family = next(f for f in FAMILIES if f.name == spec.family)
    assert family.gguf is not None
    writer = package.GGUFWriter(path, family.gguf.arch)
    mixer = spec.layers[0].mixer
    writer.add_block_count(len(spec.layers))
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.layers[0].mlp.intermediate)
    writer.add_head_count(mixer.heads)
    writer.add_head_count_kv(mixer.kv_heads)
    writer.add_key_length(mixer.head_dim)
    writer.add_value_length(mixer.head_dim)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    assert mixer.rope is not None
    writer.add_rope_freq_base(mixer.rope.theta)
    _copy_vocabulary(writer, spec, files.tokenizer.chat_template, files.eos_token_ids)
    if mixer.rope.scaling is not None:
        writer.add_tensor("rope_freqs.weight", _rope_factors(mixer.rope))
    names = {tensor.parts[0]: tensor.name for tensor in layout(spec, family)}
    matrix_type = package.GGMLQuantizationType[kind.upper()]
    for canonical, stored in names.items():
        values = quantization.to_float32(files.tensors[canonical])
        if family.gguf.stored.paired_rope and ".attn.q." in canonical:
            values = _permute(values, mixer.heads)
        elif family.gguf.stored.paired_rope and ".attn.k." in canonical:
            values = _permute(values, mixer.kv_heads)
        tensor_type = matrix_type if values.ndim == 2 else package.GGMLQuantizationType.F32
        packed = package.quants.quantize(values, tensor_type)
        writer.add_tensor(stored, packed, raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


def _permute(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rotate-half rows to GGML's neighbouring pairs, as llama.cpp's converter does for Llama."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _rope_factors(rope: Rope) -> NDArray[np.float32]:
    plain = inverse_frequencies(Rope(rope.theta, rope.dim))
    return (np.array(plain) / np.array(inverse_frequencies(rope))).astype(np.float32)


def _copy_vocabulary(
    writer: Any, spec: DecoderSpec, template: str | None, ends: tuple[int, ...]
) -> None:
    """The vocabulary of the file that the shape names, with the folder's template and end token."""
    source = next(s for s in SHAPES.values() if s[0]["vocab_size"] == spec.vocab_size)[1]
    if template is None or not (VOCABULARIES / source).is_file():
        return
    metadata = gguf.read_file(VOCABULARIES / source).metadata
    writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_bos_token_id(metadata["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(ends[0])
    writer.add_chat_template(template)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="fewer layers than the real model has")
    parser.add_argument("--vocabulary", type=Path, help="GGUF file to take the vocabulary from")
    parser.add_argument("--no-tokenizer", action="store_true")
    parser.add_argument(
        "--gguf", nargs=2, metavar=("TYPE", "FILE"), help="also a GGUF file: f16, bf16, q8_0, q4_0"
    )
    args = parser.parse_args()
    make_folder(
        args.shape,
        args.folder,
        seed=args.seed,
        layers=args.layers,
        vocabulary=args.vocabulary,
        tokenizer=not args.no_tokenizer,
    )
    if args.gguf:
        make_gguf(args.folder, Path(args.gguf[1]), args.gguf[0])
    print(f"{args.folder}: {open_model(args.folder).spec.parameters():,} parameters")


if __name__ == "__main__":
    main()
