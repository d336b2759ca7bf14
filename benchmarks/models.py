"""The model files of side_by_side.py: the same GGUF files for us and llama.cpp, int8 for vLLM.

All come from one bfloat16 checkpoint per shape: random weights (make_model.py), or brook inflated
(inflate.py) for a shape named "brook-as-...". Q8_0 and Q4_0 files have that type throughout, the
output layer included (`llama-quantize --pure`); Q4_K_M is llama.cpp's own mixture, with Q6_K in the
output layer and parts of others.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import make_model
import numpy as np
import peers
from numpy.typing import NDArray

from tidemill.loading import open_model
from tidemill.loading.formats import gguf
from tidemill.models import quantization

# Stored name, or ending of one -> type and bytes.
Parts = dict[str, tuple[str, NDArray[Any]]]

KINDS = ("bf16", "q8_0", "q4_0", "q4_k_m")


def gguf_file(shape: str, kind: str) -> Path:
    """The shape's GGUF file of a type, made when it is not there.

    Raises peers.PeerMissing: all but bf16 are made by llama.cpp's quantizer.
    """
    path = harness.MODELS / f"{shape}-{kind}.gguf"
    if path.exists():
        return path
    fresh = path.with_suffix(".new")
    if kind == "bf16" and shape.startswith(harness.INFLATED):
        fresh = path.with_suffix(".new.gguf")
        command = [harness.TIDEMILL, "convert", harness.make_model(shape), fresh, "--overwrite"]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    elif kind == "bf16":
        make_model.make_gguf(harness.make_model(shape), fresh, kind)
    else:
        source = gguf_file(shape, "bf16")
        tool = peers.get("llama_cpp").tools / "llama-quantize"
        pure = [] if kind == "q4_k_m" else ["--pure"]
        command = [tool, *pure, source, fresh, kind.upper(), str(harness.threads())]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    fresh.rename(path)
    return path


def tensor_bytes(path: Path) -> int:
    """Bytes of all tensors of a GGUF file: with a tied output layer, what one decode step reads."""
    return sum(t.nbytes for t in gguf.read_file(path).tensors.values())


def quantized_folder(shape: str, scheme: str) -> Path:
    """The shape with its layers' matrices in one of `SCHEMES`; embeddings, the output layer and
    norms stay bfloat16."""
    pack, section = SCHEMES[scheme]
    source = harness.make_model(shape)
    folder = harness.MODELS / f"{shape}-{scheme}"
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    files = open_model(source)
    config = json.loads((source / "config.json").read_text())
    family = make_model.family_for_config(config)
    stored = make_model.stored_names(family.rules, files.spec)
    parts: Parts = {}
    for canonical, tensor in files.tensors.items():
        values, name = quantization.to_float32(tensor), stored[canonical]
        if values.ndim == 2 and canonical.startswith("layers."):
            stem = name.removesuffix(".weight")
            parts |= {stem + ending: part for ending, part in pack(values).items()}
        else:
            parts[name] = ("BF16", make_model.to_bfloat16(values))
    _write_safetensors(folder / "model.safetensors", parts)
    for side in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / side, folder / side)
    config["quantization_config"] = section
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _int8_rows(values: NDArray[np.float32]) -> Parts:
    """compressed-tensors int8: a scale per output channel."""
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-8) / 127
    return {
        ".weight": ("I8", np.rint(values / scale).astype(np.int8)),
        ".weight_scale": ("BF16", make_model.to_bfloat16(scale.astype(np.float32))),
    }


def _gptq(values: NDArray[np.float32]) -> Parts:
    """GPTQ, 4 bits in symmetric groups of 128: any bits, with scales of about the right size."""
    n, k = values.shape
    words = np.random.default_rng(k).integers(-(2**31), 2**31, (k // 8, n), np.int32)
    return {
        ".qweight": ("I32", words),
        ".qzeros": ("I32", np.full((k // 128, n // 8), 0x77777777, np.int32)),
        ".scales": ("F16", np.full((k // 128, n), make_model.WEIGHT_STD / 4, np.float16)),
        ".g_idx": ("I32", np.arange(k, dtype=np.int32) // 128),
    }


def _fp8(values: NDArray[np.float32]) -> Parts:
    """fp8 with a float scale per block of 128 x 128: any bits but those of NaN, small scales."""
    n, k = values.shape
    codes = np.random.default_rng(n).integers(0, 256, (n, k), np.uint8) & 0xBF  # below 2
    scales = np.full((-(-n // 128), -(-k // 128)), make_model.WEIGHT_STD, np.float32)
    return {".weight": ("F8_E4M3", codes), ".weight_scale_inv": ("F32", scales)}


def _w8a8() -> dict[str, Any]:
    """Activations are quantized per token as they come."""
    shared = {"num_bits": 8, "type": "int", "symmetric": True}
    scheme = {
        "targets": ["Linear"],
        "weights": {**shared, "strategy": "channel", "dynamic": False},
        "input_activations": {**shared, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": scheme},
    }


SCHEMES: dict[str, tuple[Callable[[NDArray[np.float32]], Parts], dict[str, Any]]] = {
    "w8a8": (_int8_rows, _w8a8()),
    "gptq": (
        _gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    ),
    "fp8": (_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
}


def _write_safetensors(path: Path, parts: Parts) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, values) in parts.items():
        end = offset + values.nbytes
        shape = list(values.shape)
        assert math.prod(shape) * values.itemsize == values.nbytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in parts.values():
            file.write(values.tobytes())
