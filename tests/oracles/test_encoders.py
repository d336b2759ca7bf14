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
from safetensors import safe_open

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


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8", "int4"])
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


# nomic-embed-text-v1.5's config.json but for the sizes: as it was, and what it has besides since
# transformers knows the model.
_NOMIC: dict[str, Any] = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"}, "bos_token_id": None,
    "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None,
    "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12, "max_trained_positions": 602, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "model_type": "nomic_bert", "n_positions": 2400,
    "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False,
    "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
    "summary_activation": None, "summary_first_dropout": 0.0, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "torch_dtype": "float32",
    "transformers_version": "4.34.0", "type_vocab_size": 2, "use_cache": True,
    "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True, "vocab_size": 280,
}  # fmt: skip
_SINCE = {
    "max_position_embeddings": 602, "rope_parameters": {"rope_theta": 1000.0,
                                                        "rope_type": "default"},
}  # fmt: skip


@pytest.mark.parametrize("since", [{}, _SINCE], ids=["gpt-2's keys", "both"])
def test_nomic_bert_as_it_is_published(tmp_path: Path, since: dict[str, Any]) -> None:
    model = tiny("NomicBertModel", "wide")
    folder = write(
        tmp_path, model, modules=modules("Transformer", "Pooling", "Normalize"),
        **{"1_Pooling__config": {"pooling_mode_mean_tokens": True}},
    )  # fmt: skip
    with safe_open(folder / "model.safetensors", "numpy") as stored:
        names = set(stored.keys())
    outer = ("embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight",
             "emb_ln.weight", "emb_ln.bias")  # fmt: skip
    layer = ("attn.Wqkv.weight", "attn.out_proj.weight", "mlp.fc11.weight", "mlp.fc12.weight",
             "mlp.fc2.weight", "norm1.weight", "norm1.bias", "norm2.weight",
             "norm2.bias")  # fmt: skip
    assert names == {*outer, *(f"encoder.layers.{i}.{name}" for i in range(2) for name in layer)}
    sizes = {"n_embd": 96, "n_head": 6, "n_inner": 104, "n_layer": 2}
    (folder / "config.json").write_text(json.dumps(_NOMIC | sizes | since))
    text = "x" * 560
    with opened(folder, "native") as llm:
        [found] = llm.embed(text)
        ids = torch.tensor([llm.tokenizer.encode(text)])
        with torch.no_grad():
            wanted = model(ids).last_hidden_state[0].mean(0).double().numpy()
        np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=3e-6)
        with pytest.raises(TidemillError, match="602"):
            llm.embed("x" * 700)
    for change in ({"activation_function": "gelu"}, {"qkv_proj_bias": True}, {"num_experts": 8}):
        (folder / "config.json").write_text(json.dumps(_NOMIC | sizes | change))
        with pytest.raises(TidemillError, match=next(iter(change))):
            opened(folder, "native")
