"""Inflated models compute the small model's function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import inflate
from benchmarks.inflate import Heads, Shape, place_heads, place_layers
from tidemill import LLM, SamplingParams
from tidemill.loading import open_model
from tidemill.models.quantization import to_float32
from tidemill.models.registry import family_for_config
from tidemill.models.spec import DecoderSpec
from tidemill.offline.outputs import Completion
from tidemill.worker.speculate.eagle_files import read_eagle
from tidemill.worker.speculate.eagle_layer import EagleLayer

BROOK = Shape(3072, 256, 512, 6, 4, 2, 64)
SHAPES = {
    "wider, more words": Shape(3200, 512, 640, 8, 16, 8, 64),
    "width no power of two times brook's": Shape(3136, 352, 512, 6, 6, 3, 64),
    "wider heads, a KV head each": replace(
        BROOK, num_attention_heads=8, num_key_value_heads=8, head_dim=96
    ),
    "more queries per KV head": Shape(3072, 288, 512, 7, 12, 3, 128),
}
PROMPT = [{"role": "user", "content": "Tell me a short story about a fox."}]


def _answer(model: Path | None) -> Completion:
    with LLM(model, backend="torch", dtype="float32", max_model_len=256) as llm:
        params = SamplingParams(max_tokens=40, temperature=0.0, logprobs=8)
        return llm.chat([PROMPT], params)[0].outputs[0]


@pytest.fixture(scope="module")
def brooks() -> Completion:
    return _answer(None)


@pytest.mark.parametrize("name", SHAPES)
def test_the_function_is_the_same_in_float32(name: str, brooks: Completion, tmp_path: Path) -> None:
    inflate.inflate(inflate.BROOK, SHAPES[name], tmp_path)
    assert Shape.of(dict(open_model(tmp_path).config)) == SHAPES[name]
    found = _answer(tmp_path)
    assert found.token_ids == brooks.token_ids
    assert found.logprobs is not None and brooks.logprobs is not None
    for ours, theirs in zip(found.logprobs, brooks.logprobs, strict=True):
        assert dict(ours.top) == pytest.approx(dict(theirs.top), abs=2e-4)


def test_words_beyond_brooks_are_never_drawn(tmp_path: Path) -> None:
    wide = replace(BROOK, vocab_size=20_000, hidden_size=288)
    inflate.inflate(inflate.BROOK, wide, tmp_path)
    with LLM(tmp_path, max_model_len=256) as llm:
        params = SamplingParams(max_tokens=100, temperature=2.0, seed=1, ignore_eos=True)
        ids = llm.chat([PROMPT], params)[0].outputs[0].token_ids
    assert max(ids) < BROOK.vocab_size


def test_quantized_blocks_are_brooks(tmp_path: Path) -> None:
    """Brook's dimensions fill whole blocks, so a quantized wide matrix holds brook's quantized."""
    made = inflate.Inflation(open_model(inflate.BROOK), SHAPES["wider, more words"])
    small = to_float32(open_model(inflate.BROOK).tensors["layers.2.mlp.gate.weight"])
    wide = made.tensor("layers.3.mlp.gate.weight")
    np.testing.assert_array_equal(wide[:512, :256], small)
    assert not wide[:512, 256:].any()
    assert wide[512:].std() == pytest.approx(inflate.NOISE_STD, rel=0.05)


def test_companions(tmp_path: Path) -> None:
    wide = SHAPES["wider, more words"]
    inflate.companions(inflate.BROOK, wide, tmp_path)
    draft = open_model(tmp_path / "draft")
    assert draft.spec.vocab_size == wide.vocab_size
    with LLM(inflate.BROOK / "draft", max_model_len=256) as llm:
        theirs = llm.chat([PROMPT], SamplingParams(max_tokens=12, temperature=0.0))[0].outputs[0]
    with LLM(tmp_path / "draft", max_model_len=256) as llm:
        ours = llm.chat([PROMPT], SamplingParams(max_tokens=12, temperature=0.0))[0].outputs[0]
    assert ours.token_ids == theirs.token_ids
    _check_medusa(tmp_path / "medusa", wide)
    _check_eagle(tmp_path / "eagle", wide)


def _check_eagle(folder: Path, wide: Shape) -> None:
    """A layer's states, and the scores of the vocabulary, of the wide head and of brook's."""
    made = inflate.Inflation(open_model(inflate.BROOK), wide)
    brook, rng = open_model(inflate.BROOK), np.random.default_rng(0)
    small = read_eagle(inflate.BROOK / "eagle", brook.spec, "brook")
    found = read_eagle(folder, open_spec(made.config), "wide")
    assert found.layers == tuple(place_layers(6, wide.num_hidden_layers)[i] for i in small.layers)
    streams = rng.standard_normal((3, 9, BROOK.hidden_size), np.float32)
    embedded = rng.standard_normal((9, BROOK.hidden_size), np.float32)
    states = []
    for files, width in ((small, BROOK.hidden_size), (found, wide.hidden_size)):
        room = width - BROOK.hidden_size
        x, e = (np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, room)]) for a in (streams, embedded))
        if room:
            x[..., made.mark] = inflate.MARK
        layer = EagleLayer(files, 64, {})
        cache, g = layer.cache(0), layer.states(x)
        layer.read([cache], [8], g[:8], e[:8])
        y = layer.draft([cache], np.array([8]), g[8:], e[8:])
        states.append((y[0], layer.scored(y)[0]))
    (ours, ours_scored), (theirs, theirs_scored) = states
    np.testing.assert_allclose(theirs[: BROOK.hidden_size], ours, atol=0.02)
    embedding = made.tensor("embed.weight")
    scores = embedding @ theirs_scored
    small_scores = embedding[: BROOK.vocab_size, : BROOK.hidden_size] @ ours_scored
    np.testing.assert_allclose(scores[: BROOK.vocab_size], small_scores, atol=0.5)
    assert scores[: BROOK.vocab_size].argmax() == small_scores.argmax()
    assert scores[BROOK.vocab_size :].max() < small_scores.max()


def open_spec(config: dict[str, Any]) -> DecoderSpec:
    """What such a config describes."""
    return family_for_config(config).spec(config)


def _check_medusa(folder: Path, wide: Shape) -> None:
    """Scores of head 1 for a hidden state, by the wide heads and by brook's."""
    embedding = to_float32(open_model(inflate.BROOK).tensors["embed.weight"])
    made = inflate.Inflation(open_model(inflate.BROOK), wide)
    hidden = np.random.default_rng(0).standard_normal(wide.hidden_size, np.float32)
    hidden[BROOK.hidden_size :] = 0
    hidden[made.mark] = 4.0
    small = _scores(inflate.BROOK / "medusa", hidden[: BROOK.hidden_size], embedding)
    found = _scores(folder, hidden, made.tensor("embed.weight"))
    np.testing.assert_allclose(found[: BROOK.vocab_size], small, atol=0.01)
    assert found[BROOK.vocab_size :].max() < small.min() - 100


def _scores(folder: Path, hidden: np.ndarray, embedding: np.ndarray) -> np.ndarray:
    heads = inflate.open_floats(folder / "model.safetensors")
    inner = heads["1.0.linear.weight"] @ hidden + heads["1.0.linear.bias"]
    inner = hidden + inner / (1 + np.exp(-inner))
    return embedding @ (heads["1.1.weight"] @ inner)


def test_places() -> None:
    assert place_layers(6, 28) == (3, 8, 13, 17, 22, 27)
    assert place_heads(BROOK, SHAPES["wider, more words"]) == Heads((0, 1, 2, 3), ((0,), (1,)))
    alone = SHAPES["wider heads, a KV head each"]
    assert place_heads(BROOK, alone) == Heads((0, 1, 2, 3), ((0, 1), (2, 3)))
    many = SHAPES["more queries per KV head"]
    assert place_heads(BROOK, many) == Heads((0, 1, 4, 5), ((0,), (1,)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"head_dim": 32}, "head_dim is 32, less than the source's 64"),
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, "no multiple"),
        ({"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4000}, "hidden_size"),
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, None),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "num_attention_heads"),
    ],
)
def test_what_does_not_fit_is_told(change: dict[str, int], told: str | None) -> None:
    wide = replace(BROOK, **change)
    if told is None:
        return inflate.check_fits(BROOK, wide)
    with pytest.raises(SystemExit, match=told):
        inflate.check_fits(BROOK, wide)
    return None
