"""Written model files: what we read back, what the gguf package reads, and runs taken up again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
import torch
from helpers.tiny_folder import CONFIG, tensors, write_folder

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.convert import pipeline
from tidemill.convert.folder.writer import write_safetensors
from tidemill.convert.gguf.writer import write_gguf
from tidemill.convert.output import OutTensor
from tidemill.convert.report import Report
from tidemill.loading import open_model
from tidemill.loading.formats import gguf, gguf_split
from tidemill.loading.locate import bundled_models
from tidemill.models.quantization import convert, to_float32
from tidemill.models.tensors import RawTensor

BROOK = bundled_models()["brook"]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def run(source: Path, out: Path, kind: str | None = None) -> None:
    if kind is None:
        pipeline.convert(source, out)
    else:
        pipeline.quantize(source, out, pipeline.Quantization(kind))


def llama(folder: Path, **config: Any) -> Path:
    """A tiny llama with brook's vocabulary cut to its size, so that GGUF can hold it."""
    document = json.loads((BROOK / "tokenizer.json").read_text())
    model = document["model"]
    model["vocab"] = {t: i for t, i in model["vocab"].items() if i < 300}
    kept = model["vocab"]
    parts = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    model["merges"] = [m for m in parts if all(p in kept for p in [*m, "".join(m)])]
    document["added_tokens"] = []
    weights = tensors()
    rng = np.random.default_rng(1)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = rng.standard_normal((320, 32)).astype(np.float32)
    settings = {**CONFIG, "vocab_size": 320, **config}
    return write_folder(folder, config=settings, weights=weights, tokenizer__json=document)


def same_weights(a: Path, b: Path) -> None:
    first, second = open_model(a), open_model(b)
    assert set(first.tensors) == set(second.tensors)
    for name, tensor in first.tensors.items():
        np.testing.assert_array_equal(to_float32(second.tensors[name]), to_float32(tensor), name)


def test_a_folder_becomes_gguf_and_says_the_same(tmp_path: Path) -> None:
    source = llama(tmp_path / "m", rope_parameters=LLAMA3)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    run(source, tmp_path / "m.gguf")
    same_weights(source, tmp_path / "m.gguf")
    before, after = open_model(source), open_model(tmp_path / "m.gguf")
    from tidemill.models.spec import inverse_frequencies
    from tidemill.text.tokenizer import Tokenizer

    ropes = [files.spec.layers[0].mixer.rope for files in (before, after)]
    assert ropes[0] is not None and ropes[1] is not None
    np.testing.assert_allclose(*map(inverse_frequencies, ropes), rtol=1e-6)
    assert (after.bos_token_id, after.eos_token_ids) == (1, (2,))
    assert after.tokenizer.named_templates == {"tool_use": "{{ tools }}"}
    old, new = Tokenizer(before.tokenizer), Tokenizer(after.tokenizer)
    assert old.encode("Hello wörld 123") == new.encode("Hello wörld 123")
    # The rows of Q as llama.cpp's converter orders them: halves of a head interleaved.
    stored = {t.name: t for t in package.GGUFReader(tmp_path / "m.gguf").tensors}
    q = tensors()["model.layers.0.self_attn.q_proj.weight"]
    by_half = q.reshape(4, 2, 4, 32).swapaxes(1, 2).reshape(32, 32)
    np.testing.assert_array_equal(stored["blk.0.attn_q.weight"].data, by_half)


@pytest.mark.parametrize(
    ("kind", "matrix", "ends"),
    [("q8_0", "Q8_0", "Q8_0"), ("q4_0", "Q4_0", "Q8_0"), ("q4_k", "Q4_K", "Q6_K"),
     ("q6_k", "Q6_K", "Q6_K")],
)  # fmt: skip
def test_gguf_types_as_the_gguf_package_reads_them(
    kind: str, matrix: str, ends: str, tmp_path: Path
) -> None:
    out = tmp_path / "m.gguf"
    run(BROOK, out, kind)
    files, source = open_model(out), open_model(BROOK)
    stored = {t.name: t for t in package.GGUFReader(out).tensors}
    for name, canonical in (("blk.3.ffn_up.weight", "layers.3.mlp.up.weight"),
                            ("token_embd.weight", "embed.weight")):  # fmt: skip
        dtype = ends if name == "token_embd.weight" else matrix
        tensor = stored[name]
        assert tensor.tensor_type.name == dtype
        values = package.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(to_float32(files.tensors[canonical]), values)
        exact = to_float32(source.tensors[canonical])
        own = convert(RawTensor("F32", exact.shape, exact.reshape(-1).data.cast("B")), dtype)
        np.testing.assert_array_equal(values, to_float32(own))
    assert stored["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    assert files.eos_token_ids == source.eos_token_ids
    assert files.tokenizer.chat_template == source.tokenizer.chat_template


def test_gguf_to_gguf_joins_parts_and_requantizes(tmp_path: Path) -> None:
    run(BROOK, tmp_path / "b.gguf")
    run(tmp_path / "b.gguf", tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    run(tmp_path / "b.gguf", tmp_path / "q.gguf", "q8_0")
    run(BROOK, tmp_path / "direct.gguf", "q8_0")
    same_weights(tmp_path / "q.gguf", tmp_path / "direct.gguf")
    writer = package.GGUFWriter(tmp_path / "s.gguf", "llama", split_max_tensors=1)
    for i in range(3):
        writer.add_tensor(f"t{i}", np.full((2, 4), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    run(tmp_path / "s-00002-of-00003.gguf", tmp_path / "joined.gguf")
    joined = gguf_split.read_model(tmp_path / "joined.gguf")
    assert sorted(joined.tensors) == ["t0", "t1", "t2"] and "split.count" not in joined.metadata


@pytest.mark.parametrize(
    ("kind", "held", "group"),
    [("int8", "Q8_0", 256), ("int4-g32", "Q4_0", 32), ("int4-g128", "Q4_0", 128)],
)
def test_integers_in_a_folder(kind: str, held: str, group: int, tmp_path: Path) -> None:
    run(BROOK, tmp_path / "out", kind)
    files, source = open_model(tmp_path / "out"), open_model(BROOK)
    name = "layers.2.attn.q.weight"
    place = files.tensors.places[name]
    assert place.exact == held
    values, exact = place.values(), to_float32(source.tensors[name])
    np.testing.assert_array_equal(to_float32(place.packed()), values)
    steps = np.abs(exact.reshape(-1, group)).max(1) / (127.5 if kind == "int8" else 7.5)
    off = np.abs(values - exact).reshape(-1, group) / steps[:, None]
    assert off.max() < (0.8 if kind == "int8" else 0.55)  # half a step, and the scale's rounding
    assert files.tokenizer == source.tokenizer and files.spec.layers == source.spec.layers
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["format"] == "pack-quantized"


def test_pickled_weights_become_safetensors(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    torch.save({n: torch.from_numpy(t) for n, t in tensors().items()}, folder / "pytorch_model.bin")
    run(folder, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    same_weights(folder, tmp_path / "out")


# --- taken up again ---


class Stop(Exception):
    pass


def out_tensors(made: list[str], stop_at: int | None = None) -> list[OutTensor]:
    def tensor(i: int) -> OutTensor:
        def pieces() -> Iterator[bytes]:
            if i == stop_at:
                raise Stop
            made.append(f"t{i}")
            yield np.full(2**19, i, np.float32).tobytes()

        return OutTensor(f"t{i}", "F32", (2**19,), 2**21, pieces)

    return [tensor(i) for i in range(6)]


def test_long_lists_of_numbers_come_back(tmp_path: Path) -> None:
    lists = {
        "types": [1 + i % 6 for i in range(5000)],
        "scores": [-i / 8 for i in range(5000)],
        "wide": [2**40 + i for i in range(5000)],
        "flags": [i % 3 == 0 for i in range(5000)],
        "texts": [f"t{i}" for i in range(5000)],
    }
    first, again = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_gguf(first, lists, out_tensors([]), "x")
    read = gguf.read_file(first).metadata
    assert {key: list(read[key]) for key in lists} == lists
    write_gguf(again, read, out_tensors([]), "x")
    assert again.read_bytes() == first.read_bytes()


def test_an_interrupted_file_is_taken_up(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    write_gguf(whole, {"a": 1}, out_tensors([]), "x")
    made: list[str] = []
    with pytest.raises(Stop):
        write_gguf(cut, {"a": 1}, out_tensors(made, stop_at=4), "x")
    assert not cut.exists()
    again: list[str] = []
    write_gguf(cut, {"a": 1}, out_tensors(again), "x")
    assert again == ["t3", "t4", "t5"]  # the last one is not trusted
    assert cut.read_bytes() == whole.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    with pytest.raises(Stop):
        write_gguf(cut, {"a": 1}, out_tensors(made, stop_at=4), "x")
    other: list[str] = []
    write_gguf(cut, {"a": 1}, out_tensors(other), "another source")
    assert len(other) == 6


def test_interrupted_shards_are_taken_up(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        write_safetensors(tmp_path, out_tensors([], stop_at=3), "x", shard_bytes=2**22)
    again: list[str] = []
    write_safetensors(tmp_path, out_tensors(again), "x", shard_bytes=2**22)
    assert again == ["t2", "t3", "t4", "t5"]
    from tidemill.loading.formats import safetensors

    found = safetensors.read_folder(tmp_path)
    assert {n: t.array()[0] for n, t in found.items()} == {f"t{i}": i for i in range(6)}
    assert not list(tmp_path.glob("*part*"))


# --- refused ---


@pytest.mark.parametrize(
    ("source", "out", "kind", "named"),
    [
        ("window", "o.gguf", None, r"lack a key for a property of it \(window\)"),
        ("plain", "o.gguf", None, "no byte-level BPE"),
        ("llama", "m", None, "is there already"),
        ("llama", "no/such/o.gguf", None, "no such folder"),
    ],
)
def test_what_cannot_be_written_is_said(
    source: str, out: str, kind: str | None, named: str, tmp_path: Path
) -> None:
    folder = llama(tmp_path / "m")
    if source == "window":
        settings = {**json.loads((folder / "config.json").read_text()), "sliding_window": 8}
        settings["architectures"] = ["MistralForCausalLM"]
        (folder / "config.json").write_text(json.dumps(settings))
    elif source == "plain":
        (folder / "tokenizer.json").unlink()
    with pytest.raises(TidemillError, match=named) as caught:
        run(folder, tmp_path / out, kind)
    assert caught.value.kind in (ErrorKind.UNSUPPORTED, ErrorKind.CONFIG)


@pytest.mark.parametrize(
    ("name", "out", "options", "named"),
    [
        ("int8", "o.gguf", {}, "'int8' is not known for a GGUF file; it is q8_0, q4_0, q4_k, q6_k"),
        ("Q4_K_S", "o", {}, "'Q4_K_S' is not known for a folder .*; it is int8, .*awq-g128"),
        ("gptq-g32", "o", {}, "--calibrate TEXT belongs to the types gptq-g32, .*need it"),
        ("int8", "o", {"calibrated": True}, "--calibrate TEXT belongs to the types"),
        ("awq-g32", "o", {"calibrated": True, "act_order": True}, "belongs to the gptq types"),
    ],
)
def test_types_that_the_result_does_not_have(
    name: str, out: str, options: dict[str, bool], named: str
) -> None:
    with pytest.raises(TidemillError, match=named) as caught:
        pipeline.Quantization.of(name, Path(out), **options)
    assert caught.value.kind is ErrorKind.CONFIG


def test_types_in_any_case_and_by_llama_cpps_names() -> None:
    of = pipeline.Quantization.of
    assert of("Q4_K_S", Path("o.gguf")) == pipeline.Quantization("q4_k")
    assert of("INT4-g32", Path("o")) == pipeline.Quantization("int4-g32")
    ordered = of("GPTQ-g64", Path("o"), calibrated=True, act_order=True)
    assert ordered == pipeline.Quantization("gptq-g64", act_order=True)


def test_a_report_counts_every_byte_and_layer(tmp_path: Path) -> None:
    bars: list[list[Any]] = []

    @contextmanager
    def bar(title: str, total: int, sizes: bool) -> Iterator[Callable[[int], None]]:
        bars.append([title, total, sizes, 0])

        def advance(count: int) -> None:
            bars[-1][3] += count

        yield advance

    source, report = llama(tmp_path / "m"), Report(bar=bar)
    pipeline.convert(source, tmp_path / "a", report=report)
    written = pipeline.quantize(source, tmp_path / "q.gguf", pipeline.Quantization("q8_0"),
                                report=report)  # fmt: skip
    assert written.source == source and 0 < written.loss.relative < 0.01
    calibrated = pipeline.quantize(source, tmp_path / "b", pipeline.Quantization("gptq-g32"),
                                   "water over the mill " * 99, report=report)  # fmt: skip
    assert calibrated.calibration is not None and calibrated.calibration[0] > 0
    titles = [title for title, *_ in bars]
    assert titles == ["writing", "writing", "layers", "writing"]
    assert all(total == done > 0 for _, total, _, done in bars)
    assert [sizes for _, _, sizes, _ in bars] == [True, True, False, True]
