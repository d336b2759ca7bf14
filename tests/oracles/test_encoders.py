"""Encoders beside transformers, in float32, on both executors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from oracles.test_vectors import BACKENDS, TEXTS, modules, opened, write

from tidemill import TidemillError

SHAPES = {
    "small": {"hidden_size": 60, "num_attention_heads": 3, "num_hidden_layers": 3},
    "wide": {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 2},
    "deep": {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 5},
}


def tiny(kind: str, shape: str, **more: Any) -> Any:
    """A random encoder of a class of transformers, of 600 positions: more than one span."""
    family = kind.partition("For")[0].removesuffix("Model")
    values = {"vocab_size": 280, "intermediate_size": 104, "max_position_embeddings": 602}
    if family != "Bert":
        values["pad_token_id"] = 1
    if family == "ModernBert":
        values |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = getattr(transformers, family + "Config")(**values, **SHAPES[shape], **more)
    torch.manual_seed(4)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 * parameter.shape[1] ** -0.5)
            else:
                parameter.normal_(0.0, 0.2)
    return model


CASES = [
    ("BertModel", "small", "mean"), ("BertModel", "wide", "cls"), ("BertModel", "deep", "last"),
    ("RobertaModel", "small", "cls"), ("RobertaModel", "wide", "mean"),
    ("XLMRobertaModel", "deep", "mean"),
    ("NomicBertModel", "small", "mean"), ("NomicBertModel", "wide", "cls"),
    ("NomicBertModel", "deep", "mean"),
    ("ModernBertModel", "small", "mean"), ("ModernBertModel", "wide", "cls"),
    ("ModernBertModel", "deep", "last"),
]  # fmt: skip
# Neighbourhoods shorter than the texts, in one shape than a span and in another longer.
MORE: dict[tuple[str, str], dict[str, Any]] = {
    ("NomicBertModel", "wide"): {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    ("ModernBertModel", "small"): {"local_attention": 10},
    ("ModernBertModel", "wide"): {
        "local_attention": 128, "norm_bias": True, "attention_bias": True, "mlp_bias": True},
    ("ModernBertModel", "deep"): {
        "local_attention": 1030, "layer_types": ["sliding_attention"] * 4 + ["full_attention"]},
}  # fmt: skip
KEYS = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "shape", "pooling"), CASES)
def test_encoders(tmp_path: Path, backend: str, kind: str, shape: str, pooling: str) -> None:
    model = tiny(kind, shape, **MORE.get((kind, shape), {}))
    folder = write(
        tmp_path, model, modules=modules("Transformer", "Pooling", "Normalize"),
        **{"1_Pooling__config": {f"pooling_mode_{KEYS[pooling]}": True}},
    )  # fmt: skip
    texts = [*TEXTS, "x" * 560]
    with opened(folder, backend, max_step_tokens=16) as llm:
        assert not llm.info.prefix_caching
        found = llm.embed(texts)
        for text, vector in zip(texts, found, strict=True):
            ids = torch.tensor([llm.tokenizer.encode(text)])
            with torch.no_grad():
                states = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            wanted = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
            wanted = wanted.double().numpy() / np.linalg.norm(wanted.double().numpy())
            np.testing.assert_allclose(vector, wanted, atol=3e-6)
        with pytest.raises(TidemillError, match="no output layer"):
            llm.generate("a")
        with pytest.raises(TidemillError, match="at most"):
            llm.embed("x" * 700)
    if backend == "native":  # alone or in any company, on any number of threads: bit for bit
        for threads, company in ((1, texts[:1]), (1, texts[::-1]), (2, texts[2:])):
            with opened(folder, backend, threads=threads) as llm:
                for text, vector in zip(company, llm.embed(company), strict=True):
                    np.testing.assert_array_equal(found[texts.index(text)], vector)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_narrow_types_and_company(tmp_path: Path, kv_dtype: str) -> None:
    folder = write(tmp_path, tiny("BertModel", "deep"))  # heads of 32: whole AMX tiles
    texts = [*TEXTS, "x" * 560]
    with opened(folder, "native") as llm:
        exact = llm.embed(texts)
    settings = {"dtype": "bfloat16", "kv_dtype": kv_dtype}
    with opened(folder, "native", **settings) as llm:
        found = llm.embed(texts)
        assert all(float(a @ b) > 0.99 for a, b in zip(exact, found, strict=True))
        for text, vector in zip(texts, found, strict=True):
            np.testing.assert_array_equal(llm.embed(text)[0], vector)


# Of the head, ModernBERT's own keys.
_HEADS: list[tuple[str, dict[str, Any]]] = [
    ("Roberta", {}), ("XLMRoberta", {}), ("Bert", {}),
    ("ModernBert", {"local_attention": 8, "classifier_bias": True, "norm_bias": True}),
    ("ModernBert", {"classifier_pooling": "mean", "classifier_activation": "silu"}),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("family", "more"), _HEADS, ids=lambda value: str(value)[:14])
def test_cross_encoders(tmp_path: Path, backend: str, family: str, more: dict[str, Any]) -> None:
    model = tiny(f"{family}ForSequenceClassification", "small", num_labels=1, **more)
    folder = write(tmp_path, model)
    _mark_pairs(folder)
    documents = ["a document", "another", "d" * 300]
    with opened(folder, backend) as llm:
        found = llm.score("query", documents)
        for document, score in zip(documents, found, strict=True):
            tokens, types = llm.tokenizer.encode_pair("query", document)
            assert 0 < types.index(1) < len(types)
            ids = torch.tensor([tokens])
            said: dict[str, Any] = {"attention_mask": torch.ones_like(ids)}
            if family != "ModernBert":
                said["token_type_ids"] = torch.tensor([types])
            with torch.no_grad():
                logit = model(ids, **said).logits[0, 0]
            assert score == pytest.approx(float(torch.sigmoid(logit)), abs=2e-6)
            assert llm.score("query", document) == [score]  # alone or in company


def _mark_pairs(folder: Path) -> None:
    """The tokenizer puts a mark between two texts, and calls the second's tokens another type."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    sequence = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    mark = {"SpecialToken": {"id": "<|end|>", "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing", "single": sequence[:1],
        "pair": [sequence[0], mark, sequence[1], {"SpecialToken": {"id": "<|end|>", "type_id": 1}}],
        "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [257], "tokens": ["<|end|>"]}},
    }  # fmt: skip
    path.write_text(json.dumps(data))
