"""Opening checkpoint folders: what is read, and what every kind of damage is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tiny_folder import CONFIG, tensors, write_folder

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import GenerationDefaults, inspect_model, open_model
from tidemill.loading.jsonfile import parse_object
from tidemill.models.tensors import layer_name


def test_everything_is_found(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "m",
        generation_config__json={
            "eos_token_id": [5, 2, 5],
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
            "min_p": 7,
        },
        tokenizer__json={"version": "1.0"},
        tokenizer_config__json={
            "chat_template": "plain",
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "add_bos_token": True,
        },
    )
    files = open_model(folder)
    assert files.format == "huggingface"
    assert files.spec.weights_dtype == "F32"
    assert files.spec.parameters() == sum(a.size for a in tensors().values())
    assert (files.bos_token_id, files.eos_token_ids) == (1, (5, 2))
    # A value out of the parameter's range counts as not given.
    assert files.generation == GenerationDefaults(0.6, 0.95, 20, None, None)
    text = files.tokenizer
    assert text.tokenizer_json == b'{"version": "1.0"}'
    assert text.chat_template == "plain"
    assert text.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (text.add_bos, text.add_eos) == (True, None)
    stored = tensors()["model.layers.1.self_attn.k_proj.weight"]
    raw = files.tensors[layer_name(1, "attn.k.weight")]
    assert raw.shape == (16, 32) and bytes(raw.data) == stored.tobytes()
    assert files.tensors.keys() == files.spec.expected_tensors().keys()


def test_defaults_that_cannot_be_are_left_out_and_said(tmp_path: Path) -> None:
    odd = {"temperature": 900, "top_p": "0.9", "top_k": True, "min_p": None, "foo": 1}
    files = open_model(write_folder(tmp_path / "m", generation_config__json=odd))
    assert files.generation == GenerationDefaults()
    assert len(files.notes) == 3
    assert all("generation_config.json" in note for note in files.notes)
    assert "temperature to '900'" in files.notes[0] and "left out" in files.notes[0]


def test_end_tokens_come_from_the_config_without_a_generation_config(tmp_path: Path) -> None:
    files = open_model(write_folder(tmp_path / "m", generation_config__json={"do_sample": False}))
    assert files.eos_token_ids == (2,)
    assert files.generation.temperature == 0.0


@pytest.mark.parametrize(
    ("settings", "template_file", "default", "named"),
    [
        ({"chat_template": "a"}, None, "a", {}),
        (
            {"chat_template": [{"name": "default", "template": "a"},
                               {"name": "tool_use", "template": "b"}]},
            None, "a", {"tool_use": "b"},
        ),
        ({}, "from file", "from file", {}),
        ({"chat_template": "a"}, "from file", "from file", {}),
        ({}, None, None, {}),
    ],
)  # fmt: skip
def test_chat_templates_in_all_places(
    settings: Any, template_file: str | None, default: str | None, named: Any, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m", tokenizer_config__json=settings)
    if template_file is not None:
        (folder / "chat_template.jinja").write_text(template_file)
    text = open_model(folder).tokenizer
    assert text.chat_template == default
    assert text.named_templates == named


def test_summary_touches_no_data(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    summary = inspect_model(folder)
    assert summary.weight_bytes == 4 * summary.parameters
    assert summary.file_bytes == (folder / "model.safetensors").stat().st_size
    assert [t.name for t in summary.tensors] == list(summary.spec.expected_tensors())
    assert not summary.has_vocabulary and not summary.has_chat_template


def test_digest_tells_weights_apart(tmp_path: Path) -> None:
    first = open_model(write_folder(tmp_path / "a")).digest()
    assert len(first) == 16
    assert open_model(write_folder(tmp_path / "copy")).digest() == first
    assert open_model(write_folder(tmp_path / "b", weights=tensors(seed=1))).digest() != first
    longer = open_model(write_folder(tmp_path / "c", config={**CONFIG, "rope_theta": 2e4}))
    assert longer.digest() != first
    one = tensors()
    one["lm_head.weight"][-1, -1] += 1
    assert open_model(write_folder(tmp_path / "d", weights=one)).digest() != first


def damage(folder: Path, kind: str) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    config = dict(CONFIG)
    weights = tensors()
    if kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "header":
        path.write_bytes(content[:8] + b"\0" * 40 + content[48:])
    elif kind == "missing file":
        path.unlink()
    elif kind == "missing tensor":
        del weights["model.layers.1.mlp.up_proj.weight"]
        write_folder(folder, weights=weights)
    elif kind == "extra tensor":
        weights["model.layers.2.mlp.up_proj.weight"] = np.zeros((64, 32), np.float32)
        write_folder(folder, weights=weights)
    elif kind == "contradiction":
        write_folder(folder, config={**config, "num_key_value_heads": 4})
    elif kind == "dtype":
        weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.float64)
        write_folder(folder, weights=weights)
    elif kind == "architecture":
        write_folder(folder, config={**config, "architectures": ["MambaForCausalLM"]})
    elif kind == "NaN":
        text = json.dumps({**config, "rms_norm_eps": float("nan")})
        (folder / "config.json").write_text(text)
    elif kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "config text":
        (folder / "config.json").write_text("{'a': 1}")
    elif kind == "eos beyond":
        write_folder(folder, config={**config, "eos_token_id": [2, 64]})
    elif kind == "eos":
        write_folder(folder, config={**config, "eos_token_id": "</s>"})


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("truncated", "model.safetensors: truncated"),
        ("header", "model.safetensors: header: not valid JSON"),
        ("missing file", "holds neither"),
        ("missing tensor", r"layers\.1\.mlp\.up\.weight"),
        ("extra tensor", r"model\.layers\.2\.mlp\.up_proj\.weight"),
        ("contradiction", r"k_proj.weight' has shape \[16, 32\].*\[32, 32\]"),
        ("dtype", r"model\.norm\.weight' has type F64"),
        ("architecture", "MambaForCausalLM"),
        ("NaN", "config.json: not valid JSON: NaN"),
        ("no config", "config.json"),
        ("config text", "config.json: not valid JSON"),
        ("eos", "eos_token_id"),
        ("eos beyond", r"eos_token_id.*\(64\)"),
    ],
)
def test_damage_is_named(kind: str, named: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    damage(folder, kind)
    with pytest.raises(TidemillError, match=named) as caught:
        open_model(folder)
    assert caught.value.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(TidemillError, match="neither") as caught:
        open_model(tmp_path / "notes.txt")
    assert caught.value.kind == ErrorKind.MODEL_FILE
    with pytest.raises(TidemillError, match="no such file") as caught:
        open_model(tmp_path / "absent")
    assert caught.value.kind == ErrorKind.NOT_FOUND


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": "half', '{"a"', "{"])
def test_a_file_that_ends_too_early_looks_truncated(text: str) -> None:
    with pytest.raises(TidemillError, match="looks truncated: fetch it again"):
        parse_object(text.encode(), "config.json")
    with pytest.raises(TidemillError) as caught:
        parse_object(b'{"a": 1, b}', "config.json")
    assert "truncated" not in caught.value.message
