"""GGUF files turned back into folders: the tensors that went in, and transformers' logits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from convert.test_gguf_families import write_without_vocabulary
from convert.test_pipeline import BROOK, LLAMA3, llama, run
from helpers.disguised import DISGUISES, Disguise, make_disguised
from helpers.family_cases import Case, make_case
from helpers.gguf_cases import GGUF_CASES, RECURRENT_CASES
from helpers.references import prompt, reference_logits

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.convert.folder import config as folder_config
from tidemill.convert.gguf.names import tiled_rows
from tidemill.convert.output import narrowed
from tidemill.convert.pipeline import Quantization, convert, quantize
from tidemill.convert.report import Report
from tidemill.loading import open_model
from tidemill.loading.formats import safetensors
from tidemill.models.quantization import to_float32
from tidemill.models.rope import Rope
from tidemill.models.tensors import RawTensor
from tidemill.text.tokenizer import Tokenizer

# The file has their norms plus one, rounded.
_NORMS_PLUS_ONE = {"Gemma", "Gemma2", "Gemma3Text", "Nemotron", "Qwen3Next", "Qwen3_5Text",
                   "Qwen3_5MoeText"}  # fmt: skip


def stored(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = safetensors.read_folder(folder)
    return {n: (t.dtype, t.shape, bytes(t.view)) for n, t in found.items()}


@pytest.mark.parametrize(
    "case", [*GGUF_CASES, *RECURRENT_CASES], ids=lambda c: f"{c.prefix}-{c.about}"
)
def test_what_went_in_comes_out(case: Case, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = make_case(case, tmp_path / "m")
    file = write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf")
    run(file, tmp_path / "back")
    before, after = stored(tmp_path / "m"), stored(tmp_path / "back")
    after.pop("lm_head.weight", None) if "lm_head.weight" not in before else None
    assert set(before) == set(after)
    for name, (dtype, shape, data) in before.items():
        assert after[name][:2] == (dtype, shape), name
        one, other = (np.frombuffer(x, np.float32) for x in (data, after[name][2]))
        if case.prefix in _NORMS_PLUS_ONE and name.endswith("norm.weight"):
            np.testing.assert_allclose(other, one, rtol=0, atol=2**-23)
        elif name.endswith("A_log"):  # the file has minus its exponential, rounded
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
        elif case.prefix != "FalconH1":  # whose files have its multipliers in the tensors
            assert after[name][2] == data, name
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", attn_implementation="eager", dtype=torch.float32
    ).eval()
    ids = prompt(40)
    expected = reference_logits(model, ids)
    np.testing.assert_allclose(
        reference_logits(again, ids), expected, rtol=0, atol=1e-5 * expected.std()
    )


def test_heads_in_turns_are_put_back(tmp_path: Path) -> None:
    """What is quantized is exact too once it is float32."""
    case = next(c for c in RECURRENT_CASES if c.about == "2 value heads a key head, tied")
    make_case(case, tmp_path / "m")
    file = write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf", "q8_0")
    convert(file, tmp_path / "back", "f32")
    source, after = open_model(file), open_model(tmp_path / "back")
    mixer = source.spec.layers[0].recurrent
    assert mixer is not None and mixer.tiled and not after.spec.layers[0].recurrent.tiled  # type: ignore[union-attr]
    for part in ("z.weight", "out.weight", "a_log"):
        order = tiled_rows(dataclasses.replace(mixer, tiled=False), part.partition(".")[0])
        found, exact = (to_float32(m.tensors[f"layers.0.rec.{part}"]) for m in (after, source))
        np.testing.assert_array_equal(found[:, order] if "out" in part else found[order], exact)


@pytest.mark.parametrize("disguise", DISGUISES, ids=lambda d: f"{d.case.family}-{d.case.about}")
def test_so_do_families_that_transformers_lacks(disguise: Disguise, tmp_path: Path) -> None:
    make_disguised(disguise, tmp_path / "m")
    run(write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf"), tmp_path / "back")
    assert stored(tmp_path / "m") == stored(tmp_path / "back")


def test_the_bundled_model_comes_back(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    run(BROOK, tmp_path / "b.gguf")
    run(tmp_path / "b.gguf", tmp_path / "back")
    assert stored(tmp_path / "back") == stored(BROOK)
    before, after = open_model(BROOK), open_model(tmp_path / "back")
    assert before.spec == after.spec
    assert (before.bos_token_id, before.eos_token_ids) == (after.bos_token_id, after.eos_token_ids)
    assert before.tokenizer.chat_template == after.tokenizer.chat_template
    old, new = Tokenizer(before.tokenizer), Tokenizer(after.tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "back")
    for text in ["Hello wörld 123\n\n x", "<|im_start|>user\nhi<|im_end|>", "日本語 🦙"]:
        assert old.encode(text) == new.encode(text) == theirs.encode(text)
    assert old.special_ids == new.special_ids


def test_ropes_of_llama_3_get_their_name_back(tmp_path: Path) -> None:
    source = llama(tmp_path / "m", rope_parameters=LLAMA3)
    run(source, tmp_path / "m.gguf")
    run(tmp_path / "m.gguf", tmp_path / "back")
    section = json.loads((tmp_path / "back" / "config.json").read_text())["rope_scaling"]
    assert section == {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    assert stored(source) == stored(tmp_path / "back")


@pytest.mark.parametrize(("kind", "name"), [("f32", "F32"), ("bf16", "BF16"), ("f16", "F16")])
def test_quantized_weights_are_written_only_when_asked(
    kind: str, name: str, tmp_path: Path
) -> None:
    run(BROOK, tmp_path / "q.gguf", "q8_0")
    with pytest.raises(TidemillError, match="--dequantize f32") as caught:
        run(tmp_path / "q.gguf", tmp_path / "back")
    assert caught.value.kind is ErrorKind.UNSUPPORTED and not (tmp_path / "back").exists()
    said: list[str] = []
    convert(tmp_path / "q.gguf", tmp_path / "back", kind, report=Report(said.append))
    (line,) = said
    assert f"written as {kind}" in line
    source, after = open_model(tmp_path / "q.gguf"), open_model(tmp_path / "back")
    for canonical in ("embed.weight", "layers.3.mlp.up.weight", "layers.0.attn.q.weight"):
        found, exact = after.tensors[canonical], to_float32(source.tensors[canonical])
        assert found.dtype == name
        wanted = torch.from_numpy(exact).to(getattr(torch, {"F32": "float32", "BF16": "bfloat16",
                                                            "F16": "float16"}[name]))  # fmt: skip
        np.testing.assert_array_equal(to_float32(found), wanted.float().numpy())


def test_floats_are_rounded_as_torch_rounds_them() -> None:
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    values = np.concatenate([values * np.float32(2.0) ** e for e in (-40, 0, 14, 100)])
    for dtype, theirs in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        raw = RawTensor(dtype, values.shape, memoryview(narrowed(values, dtype).tobytes()))
        expected = torch.from_numpy(values).to(theirs).float().numpy()
        np.testing.assert_array_equal(to_float32(raw), expected)


def test_what_is_not_done_is_said(tmp_path: Path) -> None:
    file = write_without_vocabulary(llama(tmp_path / "m"), tmp_path / "m.gguf")
    with pytest.raises(TidemillError, match="convert the GGUF file to one first"):
        quantize(file, tmp_path / "back", Quantization("int8"))
    for source, out in ((file, "o.gguf"), (tmp_path / "m", "o.gguf"), (tmp_path / "m", "back")):
        with pytest.raises(TidemillError, match="belongs to a GGUF file written as a folder"):
            convert(source, tmp_path / out, "f32")
        assert not (tmp_path / out).exists()
    with pytest.raises(TidemillError, match="'int8' is not known; it is f32, bf16, f16"):
        convert(file, tmp_path / "back", "int8")


def test_divisors_of_no_known_rule_are_refused() -> None:
    with pytest.raises(TidemillError, match="follow no rule"):
        folder_config._llama3(Rope(10000.0, 8), (1.0, 2.0, 3.0, 5.0))
