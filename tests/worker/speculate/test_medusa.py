"""Medusa heads: both layouts give the tokens that numpy gives; what cannot be heads is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.backend_driver import options
from helpers.random_model import make_spec, make_tensors

from tidemill.backends.base import Backend
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.plan import NewSequence, Row, StepPlan
from tidemill.contract.sampling import SamplingParams
from tidemill.loading import bundled_models
from tidemill.models.quantization import to_float32
from tidemill.worker.inputs import InputBuilder
from tidemill.worker.load import load_worker
from tidemill.worker.speculate.drafter import NOTHING, Wanted
from tidemill.worker.speculate.heads import read_heads
from tidemill.worker.speculate.medusa import MedusaDrafter
from tidemill.worker.speculate.opening import bare_output

VOCAB, WIDTH, HEADS = 61, 64, 3
SPEC = make_spec(vocab=VOCAB, hidden=WIDTH, heads=4, kv_heads=2, head_dim=16, layers=2)
TENSORS = make_tensors(SPEC, "F32")


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A safetensors file."""
    header: dict[str, Any] = {}
    at = 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    text = json.dumps(header).encode()
    data = b"".join(values.astype(np.float32).tobytes() for values in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def heads(own: bool, blocks: int = 1, prefix: str = "") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    found = {}
    for k in range(HEADS):
        for layer in range(blocks):
            found[f"{prefix}{k}.{layer}.linear.weight"] = rng.normal(size=(WIDTH, WIDTH)) / 8
            found[f"{prefix}{k}.{layer}.linear.bias"] = rng.normal(size=WIDTH) / 8
        rows = VOCAB if own else WIDTH
        found[f"{prefix}{k}.{blocks}.weight"] = rng.normal(size=(rows, WIDTH)) / 8
    return {name: values.astype(np.float32) for name, values in found.items()}


def best(tensors: dict[str, np.ndarray], k: int, x: np.ndarray, prefix: str = "") -> int:
    """The likeliest token, in double precision."""
    x, layer = x.astype(np.float64), 0
    while f"{prefix}{k}.{layer}.linear.weight" in tensors:
        y = tensors[f"{prefix}{k}.{layer}.linear.weight"] @ x
        y = y + tensors[f"{prefix}{k}.{layer}.linear.bias"]
        x, layer = x + y / (1 + np.exp(-y)), layer + 1
    y = tensors[f"{prefix}{k}.{layer}.weight"] @ x
    if len(y) == WIDTH:
        y = to_float32(TENSORS["embed.weight"]) @ y
    return int(y.argmax())


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("own", "blocks", "prefix"), [(False, 1, ""), (True, 1, ""), (True, 2, "medusa_head.")]
)
def test_heads_say_what_they_say_in_numpy(
    backend: str, own: bool, blocks: int, prefix: str, tmp_path: Path
) -> None:
    from importlib import import_module

    load = import_module(f"tidemill.backends.{backend}").load
    tensors = heads(own, blocks, prefix)
    found = read_heads(write(tmp_path / "medusa_lm_head.safetensors", tensors).parent, SPEC, "m")
    target: Backend = load(SPEC, TENSORS, options())
    target.allocate_cache((8,))
    outputs = [bare_output(h.score, SPEC, load, options(), backend) if own else None for h in found]
    inputs = InputBuilder(1, 64, 16)
    idle = [True]
    drafter = MedusaDrafter(target, inputs, found, outputs, lambda: idle[0])
    rng = np.random.default_rng(2)
    wanted = []
    for i in range(3):
        sampling = SamplingParams(temperature=0.0, seed=i, frequency_penalty=0.001)
        new = NewSequence(
            seq_id=i, request_id="", choice=0, token_ids=(1, 2, 3), prompt_len=2, sampling=sampling
        )
        row = Row(seq_id=i, start=0, count=2, new_blocks=((i,),))
        inputs.prepare(StepPlan(step_id=i, new=(new,), rows=(row,)))
        hidden = None if i == 1 else rng.normal(size=WIDTH).astype(np.float32)
        wanted.append(Wanted(i, np.array([1, 2, 3], np.int32), 5 - i, hidden=hidden))
    got = drafter.propose(wanted)
    for one, proposal in zip(wanted, got, strict=True):
        if one.hidden is None:
            assert proposal == NOTHING
            continue
        count = min(one.most, HEADS)
        assert list(proposal.token_ids) == [
            best(tensors, k, one.hidden, prefix) for k in range(count)
        ]
        assert len(proposal.confidence) == count
    idle[0] = False
    assert (drafter.propose(wanted) == [NOTHING] * 3) == (not own)
    assert drafter.weight_bytes() > HEADS * 4 * WIDTH * WIDTH
    drafter.close()
    target.close()


def test_other_heads_are_refused(tmp_path: Path) -> None:
    brook = bundled_models()["brook"]

    def refusal(path: Path) -> str:
        config = EngineConfig(model=str(brook), served_name="b", speculate=f"medusa={path}")
        with pytest.raises(TidemillError) as caught:
            load_worker(config)
        assert caught.value.kind is ErrorKind.CONFIG and caught.value.param == "speculate"
        return caught.value.message

    file = write(tmp_path / "medusa_lm_head.safetensors", heads(False))
    told = refusal(tmp_path)
    assert "[64, 64]" in told and "[256, 256]" in told and "brook" in told
    lost = {name: t for name, t in heads(False).items() if not name.startswith("1.")}
    write(file, lost)
    assert "head 1" in refusal(file)
    write(file, {"model.norm.weight": np.zeros(3, np.float32)})
    assert "no Medusa heads" in refusal(file)
    file.unlink()
    assert "no Medusa heads" in refusal(tmp_path)
