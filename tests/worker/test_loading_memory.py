"""Memory while a model is loaded: what is packed is not held as stored too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

_SIZES: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 2048, "head_dim": 64,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_MIB = 2**20

# In a process of its own, where the peak can be set back and nothing else allocates.
_SCRIPT = """
import queue
import sys
from pathlib import Path
from tidemill.contract.config import EngineConfig
from tidemill.worker.load import load_worker

def load(folder, quantize):
    worker = load_worker(EngineConfig(
        model=folder, served_name="m", quantize=quantize, dtype="bfloat16", kv_memory=2**22,
        max_model_len=64, packed_cache="off", threads=2))
    loaded = queue.SimpleQueue()
    worker.runner.backend.when_loaded(loaded.put)
    assert loaded.get() is None
    return worker

def resident(field):
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) * 1024

small, large, quantize = sys.argv[1:]
load(small, quantize).runner.close()  # imports, threads
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
worker = load(large, quantize)
print(resident("VmHWM") - before, worker.info.weight_bytes)
"""


def _write(folder: Path, layers: int) -> Path:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**_SIZES, num_hidden_layers=layers)
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model to warm up with, and one of 98 MiB."""
    root = tmp_path_factory.mktemp("memory")
    return _write(root / "small", 1), _write(root / "large", 11)


@pytest.mark.parametrize("quantize", ["none", "q8_0"])
def test_the_peak_is_not_file_and_packed_form_together(
    quantize: str, folders: tuple[Path, Path]
) -> None:
    small, large = map(str, folders)
    command = [sys.executable, "-c", _SCRIPT, small, large, quantize]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    peak, packed = map(int, ended.stdout.split())
    stored = (folders[1] / "model.safetensors").stat().st_size
    assert stored > 90 * _MIB and packed > stored / 2
    # The cache, and what a step needs, beside 1.2 times the larger of the two.
    assert peak < 1.2 * max(stored, packed) + 8 * _MIB, f"{peak / _MIB:.0f} MiB"
