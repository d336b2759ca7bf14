"""Embeddings and scores of decoder models beside transformers, in float32, on both executors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.tiny_text import tokenizer_json

from tidemill import LLM, TidemillError

VOCAB = 280
TEXTS = [
    "The tide comes in.",
    "a",
    "Rivers end where the sea begins, and nobody asks them why. " * 3,
]
BACKENDS = ("native", "torch")
ST = "sentence_transformers.models."


def tiny(kind: str, shape: dict[str, Any], **more: Any) -> Any:
    """A random model of a class of transformers."""
    family = kind.partition("For")[0].removesuffix("Model")
    config = getattr(transformers, family + "Config")(
        vocab_size=VOCAB, intermediate_size=104, num_hidden_layers=3, max_position_embeddings=512,
        **shape, **more,
    )  # fmt: skip
    torch.manual_seed(3)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 * parameter.shape[1] ** -0.5)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


SHAPES = {
    "gqa": {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24},
    "mha": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16},
    "wide": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 40},
}


def write(folder: Path, model: Any, **files: Any) -> Path:
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_name(path.name + ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def modules(*kinds: str) -> list[dict[str, Any]]:
    paths = {"Transformer": "", "Normalize": "2_Normalize"}
    return [
        {"idx": i, "name": str(i), "path": paths.get(kind, f"{i}_{kind}"), "type": ST + kind}
        for i, kind in enumerate(kinds)
    ]


def opened(folder: Path, backend: str, **settings: Any) -> LLM:
    settings = {"dtype": "float32", "kv_memory": 16 * 2**20, "threads": 2, **settings}
    return LLM(folder, backend=backend, packed_cache="off", **settings)


def hidden(model: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        found = getattr(model, "model", model)(torch.tensor([ids])).last_hidden_state[0]
    return found.double().numpy()


POOLED: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "last": ("pooling_mode_lasttoken", lambda h: h[-1]),
    "mean": ("pooling_mode_mean_tokens", lambda h: h.mean(0)),
    "cls": ("pooling_mode_cls_token", lambda h: h[0]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("shape", "pooling"), [("gqa", "last"), ("mha", "mean"), ("wide", "cls")])
def test_embeddings(tmp_path: Path, backend: str, shape: str, pooling: str) -> None:
    model = tiny("Qwen3Model", SHAPES[shape])
    key, pool = POOLED[pooling]
    folder = write(
        tmp_path, model, modules=modules("Transformer", "Pooling", "Normalize"),
        **{"1_Pooling__config": {"word_embedding_dimension": 72, key: True}},
    )  # fmt: skip
    with opened(folder, backend, max_step_tokens=48) as llm:
        assert not llm.info.generates
        found = llm.embed(TEXTS)
        for text, vector in zip(TEXTS, found, strict=True):
            wanted = pool(hidden(model, llm.tokenizer.encode(text)))
            np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), atol=2e-6)
        [cut] = llm.embed(TEXTS[0], dimensions=16)
        head = found[0][:16].astype(np.float64)
        np.testing.assert_allclose(cut, head / np.linalg.norm(head), atol=2e-6)
        with pytest.raises(TidemillError, match="no output layer"):
            llm.generate("a")
    if backend == "native":  # however it is cut and whatever runs beside it, bit for bit
        for steps, texts in ((512, TEXTS), (7, TEXTS[::-1]), (48, TEXTS[2:])):
            with opened(folder, backend, max_step_tokens=steps, threads=1) as llm:
                again = dict(zip(texts, llm.embed(texts), strict=True))
                for text, vector in zip(TEXTS, found, strict=True):
                    if text in again:
                        np.testing.assert_array_equal(again[text], vector)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["Qwen2", "Llama", "Mistral"])
def test_classification_heads_score_pairs(tmp_path: Path, backend: str, kind: str) -> None:
    shape = {k: v for k, v in SHAPES["mha"].items() if kind != "Qwen2" or k != "head_dim"}
    model = tiny(f"{kind}ForSequenceClassification", shape, num_labels=1, pad_token_id=0)
    with opened(write(tmp_path, model), backend) as llm:
        found = llm.score("query", ["a document", "another"])
        for document, score in zip(["a document", "another"], found, strict=True):
            ids, _ = llm.tokenizer.encode_pair("query", document)
            with torch.no_grad():
                logit = model(torch.tensor([ids])).logits[0, 0]
            assert score == pytest.approx(float(torch.sigmoid(logit)), abs=2e-6)
        with pytest.raises(TidemillError, match="scores pairs"):
            llm.embed("a")


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'query' %}<{{ m.content }}>{% endif %}"
    "{% if m.role == 'document' %}[{{ m.content }}]{% endif %}{% endfor %}?"
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tied", [True, False])
def test_the_logits_of_two_tokens_are_a_score(tmp_path: Path, backend: str, tied: bool) -> None:
    model = tiny("Qwen3ForCausalLM", SHAPES["gqa"], tie_word_embeddings=tied)
    folder = write(
        tmp_path, model, modules=modules("Transformer", "LogitScore"),
        **{"1_LogitScore__config": {"true_token_id": 121, "false_token_id": 110}},
    )  # fmt: skip
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with opened(folder, backend) as llm:
        [found] = llm.score("q", "d")
        with torch.no_grad():
            logits = model(
                torch.tensor([llm.tokenizer.encode("<q>[d]?", add_special=False)])
            ).logits
        wanted = torch.sigmoid(logits[0, -1, 121] - logits[0, -1, 110])
        assert found == pytest.approx(float(wanted), abs=2e-6)
        assert llm.info.generates and llm.generate("a")


def test_dense_modules_follow_the_pooling(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = tiny("Qwen3Model", SHAPES["gqa"])
    weight, bias = torch.randn(40, 72), torch.randn(40)
    folder = write(
        tmp_path, model, modules=modules("Transformer", "Pooling", "Dense"),
        **{
            "1_Pooling__config": {"pooling_mode_mean_tokens": True},
            "2_Dense__config": {"activation_function": "torch.nn.modules.activation.Tanh"},
        },
    )  # fmt: skip
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense/model.safetensors")
    with opened(folder, "native") as llm:
        assert llm.info.hidden_size == 40
        [found] = llm.embed("abc")
        h = torch.tensor(hidden(model, llm.tokenizer.encode("abc")).mean(0)).float()
        np.testing.assert_allclose(found, torch.tanh(weight @ h + bias).numpy(), atol=5e-6)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1_Pooling__config": {"pooling_mode_max_tokens": True}}, "pooling_mode_max_tokens"),
        ({"1_Pooling__config": {}}, "pooling by nothing"),
        ({"modules": [{"type": "a.Conv", "path": ""}]}, "Conv"),
        ({"modules": [{"type": "a.Pooling", "path": "../.."}]}, "leaves the folder"),
        ({"modules": {}}, "not a list"),
    ],
)
def test_files_that_cannot_be_followed_are_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    good = {
        "modules": modules("Transformer", "Pooling"),
        "1_Pooling__config": {"pooling_mode_cls_token": True},
    }
    folder = write(tmp_path, tiny("Qwen3Model", SHAPES["gqa"]), **{**good, **files})
    with pytest.raises(TidemillError, match=message):
        LLM(folder)
