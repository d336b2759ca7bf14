"""Drafts of MTP layers: the answers of single steps, token for token, and drafts that come true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engine.test_speculation import batch, told
from helpers.constrained import Brook
from helpers.mtp_checkpoint import case_of, make_mtp, with_tokenizer
from safetensors.numpy import save_file

from tidemill.loading import bundled_models, open_model

VOCAB = open_model(str(bundled_models()["brook"])).spec.vocab_size
TIGHT = {"kv_memory": 2**19, "block_size": 16}


def engine(folder: Path, **how: Any) -> Brook:
    settings = {"prefix_caching": False, "max_model_len": 256, **how}
    return Brook(path=folder, packed_cache="off", dtype="float32", **settings)


@pytest.fixture(scope="module", params=[("Glm4Moe", 1), ("DeepseekV3", 1), ("Qwen3Next", 1)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix, number = request.param
    path = tmp_path_factory.mktemp(prefix)
    make_mtp(case_of(prefix, number), path, agrees=True, vocab_size=VOCAB)
    return with_tokenizer(path)


def test_answers_are_those_of_single_steps(folder: Path) -> None:
    plain = engine(folder)
    requests = batch(plain)
    want = [told([plain.run([one])[0]])[0] for one in requests]
    plain.close()
    recurrent = folder.name.startswith("Qwen")
    ways: list[dict[str, Any]] = [{"prefix_caching": True, "threads": 2}]
    ways += [] if recurrent else [TIGHT]  # so little memory has no states to spare for drafts
    for how in ways:
        drafting = engine(folder, speculate="mtp", **how)
        assert told(drafting.run(requests)) == want
        assert told(drafting.run(requests)) == want, "with prefixes found again"
        stats = drafting.stats()
        assert stats.drafts_accepted > 100
        assert (stats.preemptions > 0) == (how is TIGHT)
        drafting.close()


def test_drafts_come_true(folder: Path) -> None:
    drafting = engine(folder, speculate="auto")  # finds the layer in the checkpoint
    for temperature in (0.0, 1.0):
        before = drafting.stats()
        for seed in range(4):
            how = {"temperature": temperature, "seed": seed, "max_tokens": 60}
            asked = drafting.request("one", "Tell me a story.", (), **how)
            drafting.run([msgspec.structs.replace(asked, speculation="mtp")])
        after = drafting.stats()
        drafted = after.drafted_tokens - before.drafted_tokens
        assert drafted > 100
        # Draws that are not coupled would agree in one of thousands at temperature 1.
        assert after.drafts_accepted - before.drafts_accepted > 0.5 * drafted
    drafting.close()


def test_what_happens_to_the_models_memory_happens_to_the_layers(folder: Path) -> None:
    drafting = engine(folder, speculate="mtp")
    (want,) = drafting.ask("Tell me a story.", max_tokens=40)
    executor = drafting.executor
    for change in (
        executor.empty_cache,
        lambda: executor.limit_cache(30),
        lambda: executor.limit_cache(60),
    ):
        before = drafting.stats().drafts_accepted
        change()
        assert drafting.ask("Tell me a story.", max_tokens=40)[0].tokens == want.tokens
        assert drafting.stats().drafts_accepted > before + 10
    drafting.close()


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_heads_draft_for_models_with_states(folder: Path, kind: str, tmp_path: Path) -> None:
    if not folder.name.startswith("Qwen"):
        return  # others have no states
    spec = open_model(str(folder)).spec
    write_heads(kind, tmp_path, spec.hidden_size, len(spec.layers))
    plain = engine(folder)
    requests = batch(plain)[:8]
    want = told(plain.run(requests))
    plain.close()
    drafting = engine(folder, speculate=f"{kind}={tmp_path}")
    requests = [msgspec.structs.replace(one, speculation=kind) for one in requests]
    assert told(drafting.run(requests)) == want
    assert drafting.stats().drafted_tokens > 100
    drafting.close()


def write_heads(kind: str, folder: Path, width: int, layers: int) -> None:
    rng = np.random.default_rng(5)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.normal(size=(rows, columns)) * columns**-0.5).astype(np.float32)

    ones = np.ones(width, np.float32)
    if kind == "medusa":
        tensors = {}
        for k in range(2):
            tensors |= {
                f"{k}.0.linear.weight": matrix(width, width),
                f"{k}.0.linear.bias": ones,
                f"{k}.1.weight": matrix(width, width),
            }
    else:
        tensors = {"fc.weight": matrix(width, 2 * width), "norm.weight": ones}
        layer = {
            **{f"self_attn.{p}_proj.weight": matrix(32, 2 * width) for p in "qkv"},
            "self_attn.o_proj.weight": matrix(width, 32),
            "mlp.gate_proj.weight": matrix(48, width),
            "mlp.up_proj.weight": matrix(48, width),
            "mlp.down_proj.weight": matrix(width, 48),
            **dict.fromkeys(
                (
                    "hidden_norm.weight",
                    "input_layernorm.weight",
                    "post_attention_layernorm.weight",
                ),
                ones,
            ),
        }
        tensors |= {f"midlayer.{name}": tensor for name, tensor in layer.items()}
        config = {
            "hidden_size": width, "num_attention_heads": 2, "head_dim": 16,
            "intermediate_size": 48, "rms_norm_eps": 1e-5,
            "eagle_aux_hidden_state_layer_ids": [1, layers],
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
