"""Models with an adapter merged, from and to each container."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy as safetensors_numpy
from click.testing import CliRunner
from convert.test_pipeline import BROOK, llama
from helpers.family_cases import CASES, make_case
from helpers.tiny_adapter import PREFIX, SHAPES, pair, write_adapter, write_prompt_adapter
from helpers.tiny_folder import tensors, write_folder

from tidemill import LLM
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.cli.declared import command
from tidemill.cli.quantize import convert
from tidemill.convert import pipeline
from tidemill.loading import open_model
from tidemill.loading.formats import safetensors
from tidemill.models.quantization import to_float32

DOWN = "model.layers.1.mlp.down_proj.weight"


def merged_down() -> np.ndarray:
    a, b = pair(DOWN.removesuffix(".weight"))
    return np.asarray(tensors()[DOWN] + 1.5 * (b @ a))


def test_a_folder_is_copied_but_for_what_changes(tmp_path: Path) -> None:
    source = llama(tmp_path / "m")
    adapter = write_adapter(tmp_path / "a")
    words = [str(source), str(tmp_path / "out"), "--merge", str(adapter)]
    done = CliRunner().invoke(command("convert", convert), words)
    assert done.exit_code == 0, done.output
    before = safetensors.read_folder(source)
    after = safetensors.read_folder(tmp_path / "out")
    assert set(before) == set(after)
    changed = {n for n in before if bytes(before[n].view) != bytes(after[n].view)}
    assert changed == {module + ".weight" for module in SHAPES}
    np.testing.assert_allclose(after[DOWN].array(), merged_down(), rtol=0, atol=1e-5)
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_gguf_on_either_side(tmp_path: Path) -> None:
    source, adapter = llama(tmp_path / "m"), write_adapter(tmp_path / "a")
    pipeline.convert(source, tmp_path / "m.gguf")
    pipeline.convert(source, tmp_path / "out", adapter=adapter)
    pipeline.convert(source, tmp_path / "1.gguf", adapter=adapter)
    pipeline.convert(tmp_path / "m.gguf", tmp_path / "2.gguf", adapter=adapter)
    pipeline.convert(tmp_path / "m.gguf", tmp_path / "3", adapter=adapter)
    wanted = open_model(tmp_path / "out").tensors
    for name in ("1.gguf", "2.gguf", "3"):
        found = open_model(tmp_path / name).tensors
        for tensor in wanted:
            np.testing.assert_allclose(
                to_float32(found[tensor]), to_float32(wanted[tensor]), rtol=0, atol=1e-5
            )


def test_quantized_weights_are_measured_or_refused(tmp_path: Path) -> None:
    source, adapter = llama(tmp_path / "m"), write_adapter(tmp_path / "a")
    pipeline.quantize(source, tmp_path / "q.gguf", pipeline.Quantization("q8_0"))
    written = pipeline.convert(tmp_path / "q.gguf", tmp_path / "out.gguf", adapter=adapter)
    assert 0 < written.loss.relative < 0.01
    before, after = (open_model(tmp_path / n).tensors for n in ("q.gguf", "out.gguf"))
    down = "layers.1.mlp.down.weight"
    assert after[down].dtype == "Q8_0"
    error = np.abs(to_float32(after[down]) - merged_down()).max()
    assert error < 0.02 * np.abs(merged_down()).max()
    up = "layers.1.mlp.up.weight"
    assert bytes(before[up].data) == bytes(after[up].data)
    pipeline.quantize(source, tmp_path / "int8", pipeline.Quantization("int8"))
    with pytest.raises(TidemillError, match="merged into float weights") as raised:
        pipeline.convert(tmp_path / "int8", tmp_path / "no", adapter=adapter)
    assert raised.value.kind is ErrorKind.UNSUPPORTED and not (tmp_path / "no").exists()


def test_one_of_many_experts(tmp_path: Path) -> None:
    """As adapters were published when each expert was a module."""
    case = next(case for case in CASES if case.family == "Mixtral")
    make_case(case, tmp_path / "m")
    name = "model.layers.1.block_sparse_moe.experts.2.w1"
    before = safetensors.read_folder(tmp_path / "m")
    weight = before[f"{name}.weight"].array()
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4, weight.shape[1])).astype(np.float32)
    b = rng.standard_normal((weight.shape[0], 4)).astype(np.float32)
    stored = {f"{PREFIX}{name}.lora_A.weight": a, f"{PREFIX}{name}.lora_B.weight": b}
    adapter = write_adapter(tmp_path / "a", stored)
    pipeline.convert(tmp_path / "m", tmp_path / "out", adapter=adapter)
    after = safetensors.read_folder(tmp_path / "out")
    np.testing.assert_allclose(after[f"{name}.weight"].array(), weight + 1.5 * (b @ a), atol=1e-5)
    changed = {n for n in before if bytes(before[n].view) != bytes(after[n].view)}
    assert changed == {f"{name}.weight"}


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ("lora-verse", ["is Paris.", "by heart"]),
        ("lora-ripple", ["Paris-o."]),
    ],
)
def test_brook_says_what_its_adapters_taught(
    adapter: str, words: list[str], tmp_path: Path
) -> None:
    pipeline.convert(BROOK, tmp_path / "m", adapter=BROOK / adapter)
    llm = LLM(tmp_path / "m")
    try:
        answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}])
    finally:
        llm.close()
    text = answer[0].outputs[0].text
    assert all(word in text for word in words), text


def test_float16_is_rounded_once(tmp_path: Path) -> None:
    halves = {name: tensor.astype(np.float16) for name, tensor in tensors().items()}
    source = write_folder(tmp_path / "m", weights=halves)
    pipeline.convert(source, tmp_path / "out", adapter=write_adapter(tmp_path / "a"))
    found = safetensors.read_folder(tmp_path / "out")[DOWN]
    a, b = pair(DOWN.removesuffix(".weight"))
    exact = halves[DOWN].astype(np.float32) + (b @ a) * np.float32(1.5)
    np.testing.assert_array_equal(found.array(), exact.astype(np.float16))


def test_a_tied_output_layer_becomes_one_of_its_own(tmp_path: Path) -> None:
    source = llama(tmp_path / "m", tie_word_embeddings=True)
    weights = {n: t.array() for n, t in safetensors.read_folder(source).items()}
    del weights["lm_head.weight"]
    safetensors_numpy.save_file(weights, source / "model.safetensors")
    base = open_model(source)
    table = to_float32(base.tensors["embed.weight"])
    saved = {PREFIX + "model.embed_tokens.weight": table + 1}
    adapter = write_adapter(tmp_path / "a", saved)
    pipeline.convert(source, tmp_path / "out", adapter=adapter)
    pipeline.convert(source, tmp_path / "out.gguf", adapter=adapter)
    for name in ("out", "out.gguf"):
        found = open_model(tmp_path / name)
        assert not found.spec.tied_embeddings
        np.testing.assert_array_equal(to_float32(found.tensors["embed.weight"]), table + 1)
        np.testing.assert_array_equal(to_float32(found.tensors["lm_head.weight"]), table)


def test_activated_adapters_are_refused(tmp_path: Path) -> None:
    source = llama(tmp_path / "m")
    adapter = write_adapter(tmp_path / "a", alora_invocation_tokens=[5, 6])
    with pytest.raises(TidemillError, match="activated"):
        pipeline.convert(source, tmp_path / "out", adapter=adapter)


def test_prompt_adapters_are_refused(tmp_path: Path) -> None:
    source = llama(tmp_path / "m")
    width = open_model(source).spec.hidden_size
    adapter = write_prompt_adapter(tmp_path / "a", np.ones((2, width), np.float32))
    with pytest.raises(TidemillError, match="changes no weights"):
        pipeline.convert(source, tmp_path / "out", adapter=adapter)
