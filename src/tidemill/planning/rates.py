"""The machine's own rates: a model of random weights computes as each type of weights, so that any
model can be predicted that was never loaded here."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tidemill.contract.config import EngineConfig
from tidemill.loading.checkpoint import open_model
from tidemill.loading.locate import bundled_models
from tidemill.planning.calibrate import Progress, calibrate
from tidemill.planning.kept import MachineRates, TypeRates, this_machine
from tidemill.planning.plan import model_work
from tidemill.planning.work import Work
from tidemill.simulate.costs import Work as StepWork
from tidemill.simulate.fit import Step
from tidemill.worker.opening import of_files

QUANTIZATIONS = ("none", "q8_0", "q4_0")

# Weights beyond any cache, yet written in a second: 0.5 GB in bfloat16.
_SHAPE: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8192,
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_BLOCK_BYTES = 2**24
# Classes of fewer like steps say nothing: other processes delay single ones.
_ENOUGH = 3
_LEAST_SPREAD = 0.25
_KV_BYTES = 2**28


class _Like(NamedTuple):
    """Steps of one size."""

    nbytes: float
    flops: float
    seconds: float


def measure_rates(seconds: float, progress: Progress = lambda line: None) -> MachineRates:
    """Measure this machine.

    Args:
        seconds: of measuring, beside loading.
        progress: called with lines.

    Raises:
        TidemillError: too little time or memory.
    """
    share = seconds / (len(QUANTIZATIONS) + 1)
    small = bundled_models().get("brook")
    layer = 0.0
    if small is not None:
        layer = _layer_seconds(_config(small, "none"), share, progress)
    types, spread = {}, _LEAST_SPREAD
    with tempfile.TemporaryDirectory(prefix="tidemill-rates-") as folder:
        model = write_random(Path(folder), _SHAPE)
        for quantize in QUANTIZATIONS:
            progress(f"weights: {quantize}")
            config = _config(model, quantize)
            work = _work(config)
            _, steps = calibrate(config, share, lambda line: None)
            found, error = fit_rates(steps, work, layer)
            types[work.weight_type] = found
            spread = max(spread, 2 * error)
    return MachineRates(
        machine=this_machine(),
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        types=types,
        layer_seconds=layer,
        spread=spread,
    )


def _config(model: Path, quantize: str) -> EngineConfig:
    return EngineConfig(
        model=str(model), served_name="rates", backend="native", quantize=quantize,
        kv_memory=_KV_BYTES, packed_cache="off",
    )  # fmt: skip


def _work(config: EngineConfig) -> Work:
    return model_work(of_files(config, open_model(config.model)), config)


def _layer_seconds(config: EngineConfig, seconds: float, progress: Progress) -> float:
    """What a layer takes beside its products, of a model that is nearly nothing else."""
    progress(f"measuring for {4 * seconds:.0f} s: steps of a tiny model, then of random weights")
    costs, _ = calibrate(config, seconds, lambda line: None)
    layers = len(open_model(config.model).spec.layers)
    return costs.step.of(StepWork(1, 1, 1, 1, 1)) / max(1, layers)


def fit_rates(steps: Sequence[Step], work: Work, layer: float) -> tuple[TypeRates, float]:
    """Rates of reading and computing that describe measured steps, and the median relative miss.

    Args:
        steps: measured.
        work: of their model.
        layer: seconds per layer and step, as known.
    """
    rows = _alike(steps, work)
    # Least squares of the relative error in the two reciprocals; both above 0.
    a = b = c = p = q = 0.0
    for row in rows:
        seconds = max(row.seconds - work.layers * layer, 0.1 * row.seconds)
        x, y, z = row.nbytes / row.seconds, row.flops / row.seconds, seconds / row.seconds
        a, b, c = a + x * x, b + x * y, c + y * y
        p, q = p + x * z, q + y * z
    determinant = a * c - b * b
    per_byte = (p * c - q * b) / determinant if determinant > 0 else 0.0
    per_flop = (q * a - p * b) / determinant if determinant > 0 else 0.0
    if per_byte <= 0:
        per_byte, per_flop = 1e-15, q / c
    elif per_flop <= 0:
        per_byte, per_flop = p / a, 1e-18
    misses = [
        abs(row.nbytes * per_byte + row.flops * per_flop + work.layers * layer - row.seconds)
        / row.seconds
        for row in rows
    ]
    return TypeRates(read=1 / per_byte, flops=1 / per_flop), median(misses)


def _alike(steps: Sequence[Step], work: Work) -> list[_Like]:
    """Steps by size: means of what they compute and read, and their median time."""
    groups: dict[tuple[int, int, int], list[Step]] = {}
    for step in steps:
        size = step.work
        key = (round(4 * math.log2(1 + size.tokens)), round(2 * math.log2(1 + size.reach)),
               round(4 * math.log2(1 + size.samples)))  # fmt: skip
        groups.setdefault(key, []).append(step)
    enough = [like for like in groups.values() if len(like) >= _ENOUGH] or [*groups.values()]
    return [_mean(like, work) for like in enough]


def _mean(like: Sequence[Step], work: Work) -> _Like:
    count = len(like)
    tokens, pairs, reach, samples = (sum(step.work[i] for step in like) / count for i in range(4))
    nbytes = work.weight_bytes + reach * sum(kind.token_bytes for kind in work.attention)
    flops = 2 * work.dense.values * tokens + 2 * work.output.values * samples
    flops += pairs * sum(kind.pair_flops for kind in work.attention)
    return _Like(nbytes, flops, median(step.seconds for step in like))


def write_random(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a model of random bfloat16 weights, some hundredths in size."""
    import numpy as np

    from tidemill.models.families import llama

    (folder / "config.json").write_text(json.dumps(dict(config)))
    shapes = _stored_shapes(llama.spec(dict(config)).expected_tensors())
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    drawn = np.random.default_rng(0).standard_normal(_BLOCK_BYTES // 2, np.float32) * 0.02
    block = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, offset, _BLOCK_BYTES):
            file.write(block[: min(_BLOCK_BYTES, offset - start)])
    return folder


_STORED = {
    "embed": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head",
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}  # fmt: skip


def _stored_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """By the names of a Llama checkpoint."""
    found = {}
    for name, shape in shapes.items():
        words = name.split(".")
        layer = f"model.layers.{words[1]}." if words[0] == "layers" else ""
        own = ".".join(words[2 if layer else 0 : -1])
        found[f"{layer}{_STORED[own]}.{words[-1]}"] = shape
    return found


def described(rates: MachineRates) -> str:
    """Rates as people read them, a line per type."""
    lines = [
        f"{kind}: reads {one.read / 1e9:.1f} GB/s, computes {one.flops / 1e12:.2f} TFLOPS"
        for kind, one in rates.types.items()
    ]
    lines.append(f"a layer takes {rates.layer_seconds * 1e6:.0f} µs beside")
    return "\n".join(lines)
