"""EAGLE-3 heads: the tokens of a double-precision layer over the whole sequence; what cannot be a
head is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.backend_driver import options
from helpers.random_model import make_spec, make_tensors

from tidemill.backends.base import Backend
from tidemill.backends.draw.race import RandomKey, race
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.plan import NewSequence, Row, StepPlan
from tidemill.contract.sampling import SamplingParams
from tidemill.loading import bundled_models
from tidemill.loading.places import OneTensor
from tidemill.models.quantization import to_float32
from tidemill.worker.inputs import InputBuilder
from tidemill.worker.load import load_worker
from tidemill.worker.speculate import eagle_files
from tidemill.worker.speculate.drafter import NOTHING, Wanted
from tidemill.worker.speculate.eagle_files import EagleFiles, read_eagle
from tidemill.worker.speculate.eagle_layer import Cache, EagleLayer
from tidemill.worker.speculate.layer_drafter import LayerDrafter, Tokens
from tidemill.worker.speculate.matrices import Matrix
from tidemill.worker.speculate.opening import bare_output

VOCAB, WIDTH, HEADS, KV_HEADS, DIM, INNER = 61, 64, 4, 2, 16, 96
SPEC = make_spec(vocab=VOCAB, hidden=WIDTH, heads=4, kv_heads=2, head_dim=16, layers=6)
TENSORS = make_tensors(SPEC, "F32")
EMBED = to_float32(TENSORS["embed.weight"]).astype(np.float64)
CONFIG = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": DIM, "intermediate_size": INNER, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
}  # fmt: skip
ROWS = np.arange(3, VOCAB, 2)  # tokens that a shortened output matrix has

Tensors = dict[str, np.ndarray]


def write(folder: Path, tensors: Tensors, config: dict[str, Any] = CONFIG) -> Path:
    header: dict[str, Any] = {}
    data = b""
    for name, values in tensors.items():
        kind = {"f": "F32", "i": "I64"}[values.dtype.kind]
        values = values.astype({"F32": np.float32, "I64": np.int64}[kind])
        ends = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": ends}
        data += values.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def head(kind: str = "", layers: int = 3, prefix: str = "midlayer.") -> Tensors:
    rng = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)).astype(np.float32) / columns**0.5

    def norm() -> np.ndarray:
        return (1 + rng.normal(size=WIDTH) / 8).astype(np.float32)

    found = {
        "fc": matrix(WIDTH, layers * WIDTH),
        f"{prefix}hidden_norm": norm(),
        f"{prefix}input_layernorm": norm(),
        f"{prefix}self_attn.q_proj": matrix(HEADS * DIM, 2 * WIDTH),
        f"{prefix}self_attn.k_proj": matrix(KV_HEADS * DIM, 2 * WIDTH),
        f"{prefix}self_attn.v_proj": matrix(KV_HEADS * DIM, 2 * WIDTH),
        f"{prefix}self_attn.o_proj": matrix(WIDTH, HEADS * DIM),
        f"{prefix}post_attention_layernorm": norm(),
        f"{prefix}mlp.gate_proj": matrix(INNER, WIDTH),
        f"{prefix}mlp.up_proj": matrix(INNER, WIDTH),
        f"{prefix}mlp.down_proj": matrix(WIDTH, INNER),
        "norm": norm(),
    }
    if kind != "shared":
        # Sure of its tokens: what is compared is not up to the last bit.
        found["lm_head"] = 3 * matrix(len(ROWS) if kind == "short" else VOCAB, WIDTH)
    if kind == "embedded":
        found["embed_tokens"] = matrix(VOCAB, WIDTH)
    named = {f"{name}.weight": values for name, values in found.items()}
    if kind == "short":
        named["d2t"] = ROWS - np.arange(len(ROWS))
    return named


def reference(tensors: Tensors, tokens: list[int], streams: np.ndarray, first: int, count: int,
              key: RandomKey | None) -> list[int]:  # fmt: skip
    """Drafts behind tokens, of states [layers, positions, width] of all but the last: every
    position anew for every draft, in double precision."""
    t = {name.replace("midlayer.", ""): values.astype(np.float64)
         for name, values in tensors.items()}  # fmt: skip
    embedding = t.get("embed_tokens.weight", EMBED)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * t[f"{name}.weight"]

    def turned(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        angles = np.outer(positions, 500.0 ** (-np.arange(0, DIM, 2) / DIM))
        z = (x[..., : DIM // 2] + 1j * x[..., DIM // 2 :]) * np.exp(1j * angles)[:, None]
        return np.concatenate([z.real, z.imag], -1)

    tokens = list(tokens)
    g = np.concatenate(list(streams.astype(np.float64)), -1) @ t["fc.weight"].T
    drafts = []
    for i in range(count):
        positions = np.arange(first, len(tokens) - 1)
        x = np.concatenate([norm(embedding[tokens[first + 1 :]], "input_layernorm"),
                            norm(g[first:], "hidden_norm")], -1)  # fmt: skip
        q, k, v = ((x @ t[f"self_attn.{n}_proj.weight"].T).reshape(len(x), -1, DIM) for n in "qkv")
        q, k = turned(q, positions)[-1], turned(k, positions)
        mixed = []
        for h in range(HEADS):
            scores = k[:, h // 2] @ q[h] / DIM**0.5
            weights = np.exp(scores - scores.max())
            mixed.append(weights / weights.sum() @ v[:, h // 2])
        y = g[-1] + np.concatenate(mixed) @ t["self_attn.o_proj.weight"].T
        z = norm(y, "post_attention_layernorm")
        gate = z @ t["mlp.gate_proj.weight"].T
        y = (
            y
            + gate
            / (1 + np.exp(-gate))
            * (z @ t["mlp.up_proj.weight"].T)
            @ t["mlp.down_proj.weight"].T
        )
        logits = norm(y, "norm") @ t.get("lm_head.weight", EMBED).T
        ids = ROWS if "d2t" in t else np.arange(VOCAB)
        if key is None:
            token = int(ids[logits.argmax()])
        else:
            weights = np.exp(logits - logits.max()).astype(np.float32)
            token = race(ids, weights, key._replace(position=key.position + i))
        drafts.append(token)
        tokens.append(token)
        g = np.concatenate([g, y[None]])
    return drafts


def drafter_of(
    target: Backend,
    inputs: InputBuilder,
    files: EagleFiles,
    output: Matrix | None,
    products: Mapping[str, Matrix],
    idle: Callable[[], bool],
    context: int,
) -> LayerDrafter[Cache]:
    layer = EagleLayer(files, context, products)
    tokens = Tokens(output, files.tokens, files.embedding)
    return LayerDrafter(target, inputs, layer, files.layers, tokens, idle)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("kind", "apart"),
    [("", False), ("", True), ("short", True), ("shared", False), ("embedded", False)],
)
def test_drafts_are_those_of_the_whole_layer(
    backend: str, kind: str, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = import_module(f"tidemill.backends.{backend}").load
    tensors = head(kind)
    files = read_eagle(write(tmp_path, tensors), SPEC, "m")
    assert files.layers == (2, 3, 3)
    target: Backend = load(SPEC, TENSORS, options())
    target.allocate_cache((8,))

    def matrix(weight: OneTensor) -> Matrix:
        return Matrix(bare_output(weight, SPEC, load, options(), backend))

    output = None if files.output is None else matrix(files.output)
    monkeypatch.setattr(eagle_files, "TINY", 0 if apart else 2**22)
    products = {name: matrix(weight) for name, weight in files.products.items()}
    assert len(products) == (8 if apart else 0)
    inputs = InputBuilder(1, 64, 16)
    idle = [True]
    drafter = drafter_of(target, inputs, files, output, products, lambda: idle[0], 64)
    assert drafter.layers == (0, 2, 3)
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, VOCAB, 14).astype(np.int32)
    streams = rng.normal(size=(3, 14, WIDTH)).astype(np.float32)
    streams[0] = EMBED[tokens]
    wanted, keys = [], [None, RandomKey(5, 0, 14), None]
    for i, key in enumerate(keys):
        sampling = SamplingParams(temperature=0.0 if key is None else 1.0, seed=5)
        new = NewSequence(seq_id=i, request_id="", choice=0, token_ids=tuple(tokens.tolist()),
                          prompt_len=13, sampling=sampling)  # fmt: skip
        inputs.prepare(StepPlan(step_id=i, new=(new,), rows=(
            Row(seq_id=i, start=0, count=2, new_blocks=((i,),)),)))  # fmt: skip
        drafter.add(new, 3 if i == 2 else 0)
        wanted.append(Wanted(i, tokens, 4 - i))
    assert drafter.propose(wanted) == [NOTHING] * 3  # nothing is known of the prompt
    for start, end in ((0, 5), (5, 6), (6, 10), (8, 11), (11, 13)):  # 8 and 9 once more
        for i in (0, 1):
            drafter.learn(i, start, tokens, streams[:, start:end])
    assert drafter.propose([wanted[2]]) == [NOTHING]
    drafter.learn(2, 3, tokens, streams[:, 3:4])
    drafter.learn(2, 6, tokens, streams[:, 6:13])  # without 4 and 5: begins anew
    for _ in range(2):  # drafting changes nothing that is known
        got = drafter.propose(wanted)
        for i, (one, proposal) in enumerate(zip(wanted, got, strict=True)):
            first = 6 if i == 2 else 0
            states = streams[[1, 2, 2], :13]
            want = reference(tensors, tokens.tolist(), states, first, one.most, keys[i])
            found = list(proposal.token_ids)
            assert found == want[: len(found)] and found
            assert len(proposal.confidence) == len(found)
    assert drafter.kv_bytes() > 0 and drafter.weight_bytes() > 4 * 2 * 64 * 64
    idle[0] = False
    assert drafter.propose(wanted) == [NOTHING] * 3
    drafter.forget(0)
    drafter.close()
    target.close()


def test_what_nobody_asks_for_is_forgotten_unread(tmp_path: Path) -> None:
    """Of 150 tokens one by one, those before the last 22 where no drafts were asked for meanwhile,
    and none where some were."""
    native = import_module("tidemill.backends.native")
    tensors = head("")
    files = read_eagle(write(tmp_path, tensors), SPEC, "m")
    target = native.load(SPEC, TENSORS, options(max_positions=256))
    target.allocate_cache((8,))
    assert files.output is not None
    output = Matrix(bare_output(files.output, SPEC, native.load, options(), "native"))
    inputs = InputBuilder(1, 256, 16)
    drafter = drafter_of(target, inputs, files, output, {}, lambda: True, 256)
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, VOCAB, 151).astype(np.int32)
    streams = rng.normal(size=(3, 150, WIDTH)).astype(np.float32)
    streams[0] = EMBED[tokens[:150]]
    for i in range(2):
        new = NewSequence(seq_id=i, request_id="", choice=0, token_ids=tuple(tokens.tolist()),
                          prompt_len=13, sampling=SamplingParams(temperature=0.0))  # fmt: skip
        inputs.prepare(StepPlan(step_id=i, new=(new,), rows=(
            Row(seq_id=i, start=0, count=2, new_blocks=((i,),)),)))  # fmt: skip
        drafter.add(new, 0)
    for at in range(150):
        for i in range(2):
            drafter.learn(i, at, tokens, streams[:, at : at + 1])
        if at == 100:
            drafter.propose([Wanted(0, tokens[:102], 2)])
    for i, first in enumerate((0, 128)):
        want = reference(tensors, tokens.tolist(), streams[[1, 2, 2]], first, 3, None)
        (got,) = drafter.propose([Wanted(i, tokens, 3)])
        assert list(got.token_ids) == want[: len(got.token_ids)] and got.token_ids
    drafter.close()
    target.close()


def test_other_heads_are_refused(tmp_path: Path) -> None:
    def refusal(tensors: Tensors, config: dict[str, Any] = CONFIG) -> str:
        with pytest.raises(TidemillError) as caught:
            read_eagle(write(tmp_path, tensors, config), SPEC, "tiny")
        assert caught.value.kind is ErrorKind.CONFIG and caught.value.param == "speculate"
        return caught.value.message

    good = head()
    assert "hidden size 32, tiny has 64" in refusal(good, {**CONFIG, "hidden_size": 32})
    assert "hidden_size" in refusal(good, {**CONFIG, "hidden_size": "x"})
    assert "has 6 layers" in refusal(
        good, {**CONFIG, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}}
    )
    assert "no EAGLE-3 head" in refusal({k: v for k, v in good.items() if k != "fc.weight"})
    assert "v_proj.weight is missing" in refusal(
        {k: v for k, v in good.items() if "v_proj" not in k}
    )
    assert "[64, 192]" in refusal(head(layers=2))
    short = head("short")
    assert "d2t" in refusal({k: v for k, v in short.items() if k != "d2t"})
    for wrong in (short["d2t"] + VOCAB, short["d2t"][::-1], short["d2t"][1:]):
        assert "d2t" in refusal({**short, "d2t": wrong})
    read_eagle(write(tmp_path, head(prefix="layers.0.")), SPEC, "tiny")  # others' names
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(TidemillError, match="no EAGLE head"):
        read_eagle(tmp_path, SPEC, "tiny")
    config = EngineConfig(
        model=str(bundled_models()["brook"]), served_name="b", speculate=f"eagle={tmp_path / 'x'}"
    )
    with pytest.raises(TidemillError, match="EAGLE head") as caught:
        load_worker(config)
    assert caught.value.param == "speculate"
