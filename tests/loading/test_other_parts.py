"""Files with a vision part: opened without it, written with it, and no pictures are taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.family_cases import CASES, make_case
from helpers.tiny_text import CHAT_TEMPLATE, tokenizer_json
from safetensors.torch import load_file

from tidemill import LLM, TidemillError
from tidemill.convert.pipeline import Quantization, convert, quantize
from tidemill.loading import open_model
from tidemill.models.multimodal import LEFT_OUT

PICTURE = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "text", "text": "What is it?"},
        ],
    }
]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llava"
    make_case(next(c for c in CASES if c.prefix == "Llava"), folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "preprocessor_config.json").write_text('{"size": 28}')
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def test_another_folder_keeps_every_part(llava: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(llava, out)
    before, after = weights(llava), weights(out)
    assert set(after) == set(before) and any("vision" in name for name in after)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert (out / "preprocessor_config.json").is_file()
    _, loading = transformers.LlavaForConditionalGeneration.from_pretrained(
        out, output_loading_info=True
    )
    assert not loading["missing_keys"] and not loading["unexpected_keys"]


def test_quantizing_leaves_the_vision_part_as_it_is(llava: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantize(llava, out, Quantization("int8"))
    before, after = weights(llava), weights(out)
    others = [name for name in before if "vision" in name or "projector" in name]
    assert len(others) > 10 and all(torch.equal(after[n], before[n]) for n in others)
    assert not any(name.endswith("mlp.up_proj.weight") for name in after)
    matrices = {n.removesuffix(".weight") for n in others if before[n].ndim > 1}
    assert matrices <= set(config(out)["quantization_config"]["ignore"])
    source, files = open_model(llava), open_model(out)
    assert LEFT_OUT in files.notes and set(files.other_parts) == set(others)
    name = "layers.0.attn.q.weight"
    found, wanted = (
        np.asarray(f.tensors.places[name].values(), np.float32) for f in (files, source)
    )
    assert 0 < float(np.abs(found - wanted).max()) < float(np.abs(wanted).max()) / 50


def test_a_calibration_text_is_refused(llava: Path, tmp_path: Path) -> None:
    with pytest.raises(TidemillError, match=r"vision part.*--type int8"):
        quantize(llava, tmp_path / "out", Quantization("gptq-g32"), "a" * 9999)
    assert not (tmp_path / "out").exists()


def test_pictures_are_refused(llava: Path) -> None:
    with LLM(llava, kv_memory=16 * 2**20, threads=1, packed_cache="off") as llm:
        with pytest.raises(TidemillError, match=r"messages\[0\]\.content.*text parts"):
            llm.chat(PICTURE)
        [answer] = llm.chat(
            [{"role": "user", "content": "What is it?"}], llm.sampling(max_tokens=3)
        )
        assert 0 < len(answer.outputs[0].token_ids) <= 3
