"""The model files of side_by_side.py: the same GGUF files for us and llama.cpp, int8 for vLLM.

All come from one random bfloat16 checkpoint per shape (make_model.py). Q8_0 and Q4_0 files have
that type throughout, the output layer included (`llama-quantize --pure`); Q4_K_M is llama.cpp's own
mixture, with Q6_K in the output layer and parts of others.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import harness
import make_model
import numpy as np
import peers
from numpy.typing import NDArray

from tidemill.loading import gguf, open_model
from tidemill.models import quantization

KINDS = ("bf16", "q8_0", "q4_0", "q4_k_m")


def gguf_file(shape: str, kind: str) -> Path:
    """The shape's GGUF file of a type, made when it is not there.

    Raises peers.PeerMissing: all but bf16 are made by llama.cpp's quantizer.
    """
    path = harness.MODELS / f"{shape}-{kind}.gguf"
    if path.exists():
        return path
    fresh = path.with_suffix(".new")
    if kind == "bf16":
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


def w8a8_folder(shape: str) -> Path:
    """The shape as compressed-tensors int8: a scale per output channel, activations quantized per
    token as they come; embeddings, the output layer and norms stay bfloat16."""
    source = harness.make_model(shape)
    folder = harness.MODELS / f"{shape}-w8a8"
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    files = open_model(source)
    config = json.loads((source / "config.json").read_text())
    family = make_model.family_for_config(config)
    stored = make_model.stored_names(family.rules, files.spec)
    parts: dict[str, tuple[str, NDArray[Any]]] = {}
    for canonical, tensor in files.tensors.items():
        values, name = quantization.to_float32(tensor), stored[canonical]
        if values.ndim == 2 and canonical.startswith("layers."):
            scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-8) / 127
            parts[name] = ("I8", np.rint(values / scale).astype(np.int8))
            parts[f"{name}_scale"] = ("BF16", make_model.to_bfloat16(scale.astype(np.float32)))
        else:
            parts[name] = ("BF16", make_model.to_bfloat16(values))
    _write_safetensors(folder / "model.safetensors", parts)
    for side in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / side, folder / side)
    config["quantization_config"] = _w8a8()
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _w8a8() -> dict[str, Any]:
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


def _write_safetensors(path: Path, parts: dict[str, tuple[str, NDArray[Any]]]) -> None:
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
