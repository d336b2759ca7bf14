"""Which files of a repository are the model."""

from __future__ import annotations

import pytest

from tidemill.base.errors import TidemillError
from tidemill.loading.hub_choice import choose, label
from tidemill.loading.hub_name import HubName

FOLDER = ("config.json", "tokenizer.json", "model.safetensors", "README.md")
GGUF = (
    "config.json",
    "m-BF16.gguf",
    "m-Q4_K_M.gguf",
    "m.Q8_0.gguf",
    "mmproj-m-f16.gguf",
    "UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00002.gguf",
    "UD-Q2_K_XL/m-UD-Q2_K_XL-00002-of-00002.gguf",
    "m-IQ4_XS.gguf",
)


def test_a_folder_without_what_is_not_read() -> None:
    spare = (
        "pytorch_model.bin",
        "onnx/model.safetensors",
        "modeling.py",
        "consolidated.safetensors",
    )
    inner = ("1_Pooling/config.json", "modules.json", "additional_chat_templates/rag.jinja")
    choice = choose(HubName("o/n"), (*FOLDER, *spare, *inner))
    assert set(choice.files) == {*FOLDER[:3], *inner} and choice.entry is None
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    choice = choose(
        HubName("o/n"), ("config.json", *shards, "model.safetensors.index.json", *spare)
    )
    assert set(choice.files) == {"config.json", *shards, "model.safetensors.index.json"}


@pytest.mark.parametrize(
    ("tag", "entry", "parts"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf", 1),
        ("q4_k_m", "m-Q4_K_M.gguf", 1),
        ("Q4_K", "m-Q4_K_M.gguf", 1),
        ("q8_0", "m.Q8_0.gguf", 1),
        ("bf16", "m-BF16.gguf", 1),
        ("IQ4_XS", "m-IQ4_XS.gguf", 1),
        ("Q2_K_XL", "UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00002.gguf", 2),
        (None, "m-Q4_K_M.gguf", 1),
        ("latest", "m-Q4_K_M.gguf", 1),
    ],
)
def test_a_quantization_is_a_file_with_its_parts(tag: str | None, entry: str, parts: int) -> None:
    choice = choose(HubName("o/n", tag=tag), GGUF)
    assert choice.entry == entry and len(choice.files) == parts
    assert ("o/n:TYPE" in (choice.note or "")) == (tag in (None, "latest"))


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        ("m-BF16.gguf", "m-BF16.gguf"),
        ("UD-Q2_K_XL", "UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00002.gguf"),
        *(
            (name, "UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00002.gguf")
            for name in (*GGUF[5:7], "m-UD-Q2_K_XL-00001-of-00002.gguf")
        ),
    ],
)
def test_a_file_is_named_by_path_folder_or_any_part(file: str, entry: str) -> None:
    assert choose(HubName("o/n", file=file), GGUF).entry == entry


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        (HubName("o/n", tag="Q3_K"), GGUF, "there are BF16, IQ4_XS, Q4_K_M, Q8_0, UD-Q2_K_XL"),
        (HubName("o/n", tag="Q4_0"), FOLDER, "there are none"),
        (HubName("o/n", tag="Q4_0"), ("a-Q4_0.gguf", "b-Q4_0.gguf"), "--file: a-Q4_0.gguf, b-Q4"),
        (HubName("o/n", file="x.gguf"), GGUF, "no file 'x.gguf'; its GGUF files are m-BF16.gguf"),
        (HubName("o/n"), ("config.json", "pytorch_model.bin"), "PyTorch's files alone"),
        (HubName("o/n"), ("adapter_model.safetensors",), "without a config.json"),
        (HubName("o/n"), ("README.md",), "neither safetensors"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    name: HubName, files: tuple[str, ...], said: str
) -> None:
    with pytest.raises(TidemillError, match=said):
        choose(name, files)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("Llama-3-8B.Q4_K_S.gguf", "Q4_K_S"),
        ("Qwen3-0.6B-f16.gguf", "F16"),
        ("fp16/model.gguf", "F16"),
        ("gemma-3-270m-it-UD-IQ1_M.gguf", "UD-IQ1_M"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-TQ1_0-00001-of-00003.gguf", "TQ1_0"),
        ("Q4_0.gguf", "Q4_0"),
        ("model.gguf", None),
    ],
)
def test_a_files_quantization(file: str, kind: str | None) -> None:
    assert label(file) == kind
