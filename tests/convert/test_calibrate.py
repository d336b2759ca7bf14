"""GPTQ and AWQ: the layers that they run, what rounding changes, and the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.family_cases import CASES, Case, make_case
from helpers.references import prompt, reference_logits

from tidemill.base.errors import TidemillError
from tidemill.convert.calibrate import layer, rounding
from tidemill.convert.calibrate.model import METHODS, Quantizer
from tidemill.convert.calibrate.tensors import calibrated_tensors
from tidemill.convert.folder.writer import write_safetensors
from tidemill.loading import open_model
from tidemill.models.quantization import to_float32

_DENSE = ("Llama", "Gemma2", "Phi", "Cohere", "Bloom", "Exaone4")


@pytest.mark.parametrize("prefix", _DENSE)
def test_layers_compute_what_transformers_computes(prefix: str, tmp_path: Path) -> None:
    model = make_case(next(c for c in CASES if c.prefix == prefix), tmp_path / "m")
    files, ids = open_model(tmp_path / "m"), prompt(40)
    spec = files.spec
    weights = {name: place.values() for name, place in files.tensors.places.items()}
    x = layer.embed(spec, weights, np.array(ids))
    for index in range(len(spec.layers)):
        at = f"layers.{index}."
        own = {n.removeprefix(at): w for n, w in weights.items() if n.startswith(at)}
        x = layer.run_layer(spec, index, own, x)
    x = layer.normed(x, spec.norm, spec.norm_eps, weights, "final_norm")
    logits = x @ weights.get("lm_head.weight", weights["embed.weight"]).T
    logits = (logits + weights.get("lm_head.bias", 0)) * spec.logit_scale
    if spec.logit_softcap is not None:
        logits = spec.logit_softcap * np.tanh(logits / spec.logit_softcap)
    expected = reference_logits(model, ids)
    assert np.abs(logits - expected).max() < 1e-3 * expected.std()


def correlated(k: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    mixed = rng.standard_normal((count, k // 4)) @ rng.standard_normal((k // 4, k))
    sizes = np.exp(rng.standard_normal(k))
    return ((mixed + 0.3 * rng.standard_normal((count, k))) * sizes).astype(np.float32)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_gptq_changes_less_than_rounding_to_nearest(group: int, act_order: bool) -> None:
    x = correlated(256, 1000)
    w = np.random.default_rng(6).standard_normal((64, 256)).astype(np.float32)
    hessian = x.T @ x
    found = rounding.gptq(w, group, hessian, act_order=act_order)
    costs = [
        rounding.change(rounded.values() - w, hessian)
        for rounded in (found, rounding.nearest(w, group, True))
    ]
    assert costs[0] < 0.5 * costs[1]
    assert found.codes.max() <= 15 and (found.zeros == 8).all()


_SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
          "intermediate_size": 96}  # fmt: skip


def quantized(kind: str, tmp_path: Path, tokens: list[np.ndarray]) -> tuple[Path, Path]:
    """(the source's folder, the quantized one)."""
    import json

    llama = next(c for c in CASES if c.prefix == "Llama")
    make_case(Case("", "Llama", "", {**llama.values, **_SHAPE}), tmp_path / "m")
    files, method, out = open_model(tmp_path / "m"), METHODS[kind], tmp_path / "q"
    out.mkdir()
    quantizer = Quantizer(files, method, tokens, tmp_path / "scratch", "a")
    quantizer.run()
    write_safetensors(out, calibrated_tensors(files, quantizer), "a")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["quantization_config"] = method.config()
    (out / "config.json").write_text(json.dumps(config))
    return tmp_path / "m", out


def final_states(folder: Path, ids: list[int], nearest: bool | None = None) -> np.ndarray:
    """What leaves the last layer; `nearest`: matrices rounded to nearest, true for symmetric."""
    files = open_model(folder)
    weights = {n: to_float32(t) for n, t in files.tensors.items()}
    for name, weight in weights.items():
        if nearest is not None and name.startswith("layers.") and weight.ndim == 2:
            weights[name] = rounding.nearest(weight, 32, nearest).values()
    x = layer.embed(files.spec, weights, np.array(ids))
    for index in range(len(files.spec.layers)):
        at = f"layers.{index}."
        own = {n.removeprefix(at): w for n, w in weights.items() if n.startswith(at)}
        x = layer.run_layer(files.spec, index, own, x)
    return x


@pytest.mark.parametrize("kind", ["gptq-g32", "awq-g32"])
def test_a_folder_is_quantized_taken_up_and_read(kind: str, tmp_path: Path) -> None:
    ids = [np.array(prompt(100, seed=s)) for s in range(4)]
    source, out = quantized(kind, tmp_path, ids)
    files = open_model(out)
    assert {t.dtype for n, t in files.tensors.items() if ".mlp.up." in n} == {
        "Q4_0" if kind == "gptq-g32" else "Q5_0"
    }
    text = ids[0].tolist()
    expected = final_states(source, text)
    plain = final_states(source, text, nearest=kind == "gptq-g32")
    errors = [float(np.square(x - expected).sum()) for x in (final_states(out, text), plain)]
    assert errors[0] < 0.8 * errors[1]
    # Taken up: the layers that are there are not made again, another identity starts anew.
    told: list[int] = []
    again = Quantizer(open_model(source), METHODS[kind], ids, tmp_path / "scratch", "a")
    again.run(told.append)
    assert told == [3]
    told.clear()
    Quantizer(open_model(source), METHODS[kind], ids, tmp_path / "scratch", "b").run(told.append)
    assert told == [0, 1, 1, 1]


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    make_case(next(c for c in CASES if c.prefix == "Mixtral"), tmp_path / "m")
    files = open_model(tmp_path / "m")
    with pytest.raises(TidemillError, match="mixtures of experts"):
        Quantizer(files, METHODS["gptq-g32"], [], tmp_path / "s", "")
