"""Whole models with hostile headers and configs: a TidemillError or a model, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_folder import CONFIG, write_folder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model

FIXTURE = Path(__file__).parents[1] / "fixtures" / "gguf" / "Llama-llama3-rope-q4_0.gguf"
GGUF = FIXTURE.read_bytes()
HEADER = GGUF.index(b"blk.1.ffn_norm.weight") + 60  # metadata and most tensor infos

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [*CONFIG, "rope_scaling", "rope_parameters", "head_dim", "attention_bias", "hidden_act",
        "tie_word_embeddings", "sliding_window", "layer_types", "max_window_layers"]  # fmt: skip
rope_values = st.dictionaries(
    st.sampled_from(
        ["rope_type", "type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor",
         "original_max_position_embeddings", "partial_rotary_factor"]
    ),
    json_values | st.sampled_from(["llama3", "linear", "default", 1.0, 8, 32]),
)  # fmt: skip


def attempt(path: Path) -> None:
    try:
        files = open_model(path)
        files.digest()
        for name in files.tensors:
            assert files.tensors[name].shape == files.spec.expected_tensors()[name]
    except TidemillError as error:
        assert error.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(4, HEADER), st.integers(0, 255)), min_size=1, max_size=5)
)
def test_gguf_headers(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(GGUF)
    for at, value in changes:
        content[at] = value
    path = tmp_path_factory.getbasetemp() / "hostile.gguf"
    path.unlink(missing_ok=True)  # a mapping of the last example may still be alive
    path.write_bytes(content)
    attempt(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("hostile"))


@settings(max_examples=200, deadline=None)
@given(
    family=st.sampled_from(["Llama", "Mistral", "Qwen2", "Qwen3"]),
    changes=st.dictionaries(st.sampled_from(KEYS), json_values | rope_values, max_size=4),
)
@example(family="Llama", changes={"rope_parameters": True, "rope_scaling": {"type": "linear"}})
def test_configs(folder: Path, family: str, changes: dict[str, Any]) -> None:
    config = {**CONFIG, "architectures": [family + "ForCausalLM"], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    attempt(folder)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(
        ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
         "model.safetensors.index.json"]
    ),
    content=json_values
    | st.dictionaries(
        st.sampled_from(["chat_template", "eos_token_id", "bos_token", "temperature", "top_k",
                         "add_bos_token", "weight_map", "do_sample"]),
        json_values,
    ),
)  # fmt: skip
def test_side_files(folder: Path, name: str, content: Any) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / name).write_text(json.dumps(content))
    attempt(folder)
    (folder / name).unlink()
