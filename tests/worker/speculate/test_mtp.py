"""Drafts of an MTP layer are those of its decoder layer as transformers computes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_cases import RECURRENT_CASES
from helpers.mtp_checkpoint import MtpModel, case_of, greedy, make_mtp, reference_drafts
from safetensors.torch import load_file, save_file

from tidemill.backends.draw.race import RandomKey, race
from tidemill.base.errors import TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.plan import DraftsWanted, LogitsWanted, NewSequence, Row, StepPlan
from tidemill.contract.sampling import SamplingParams
from tidemill.convert.gguf.shape import gguf_family, shape_metadata
from tidemill.convert.gguf.tensors import to_gguf
from tidemill.convert.gguf.writer import write_gguf
from tidemill.convert.output import Loss, OutTensor
from tidemill.loading import open_model
from tidemill.worker.load import load_worker
from tidemill.worker.needs import memory_needs
from tidemill.worker.opening import speculation_of
from tidemill.worker.speculate import layer_drafter

SIZE = 16  # tokens of a block


def config(folder: Path, **more: Any) -> EngineConfig:
    settings = {"block_size": SIZE, "kv_memory": 2**24, "threads": 1, "packed_cache": "off"}
    return EngineConfig(
        model=str(folder), served_name="tiny", **{"speculate": "mtp", **settings, **more}
    )


def proposals(
    model: MtpModel, tokens: list[int], cuts: list[int], first: int = 0, **more: Any
) -> dict[float, list[int]]:
    """By temperature, what is sampled behind tokens that are computed in chunks, and four drafts.

    Args:
        model: it.
        tokens: a prompt.
        cuts: where chunks end, the last one excepted.
        first: begin with so many tokens that another sequence's blocks hold.
        more: of the engine's config.
    """
    worker = load_worker(config(model.folder, **more))
    runner = worker.runner
    groups = len(runner.backend.spec.cache_groups())
    found: dict[float, list[int]] = {}
    ways = [(0, 0.0), (4, 1.0)] if not first else [(0, 0.0), (0, 1.0)]
    steps = 0
    for i, (block, temperature) in enumerate(ways):
        new = NewSequence(
            seq_id=i, request_id="", choice=0, token_ids=tuple(tokens), prompt_len=len(tokens),
            sampling=SamplingParams(temperature=temperature, seed=5), drafters=("mtp",),
        )  # fmt: skip
        begin = at = first if i else 0
        for cut in [*(cut for cut in cuts if cut > at), len(tokens)]:
            last = cut == len(tokens)
            row = Row(
                seq_id=i,
                start=at,
                count=cut - at,
                new_blocks=() if at > begin else (tuple(range(block, block + 4)),) * groups,
                logits=LogitsWanted.LAST if last else LogitsWanted.NONE,
                sample=last,
                drafts_wanted=(DraftsWanted("mtp", 4),) if last else (),
            )
            steps += 1
            plan = StepPlan(step_id=steps, rows=(row,), new=() if at > begin else (new,))
            (result,) = runner.submit(plan).result().rows
            at = cut
        found[temperature] = [*result.token_ids, *result.draft_token_ids]
    runner.close()
    return found


def drawn(temperature: float, first: int) -> Callable[[np.ndarray, int], int]:
    """How a token is drawn behind `first` known ones."""

    def draw(logits: np.ndarray, i: int) -> int:
        if not temperature:
            return greedy(logits, i)
        weights = np.exp(logits - logits.max()).astype(np.float32)
        return race(np.arange(len(logits)), weights, RandomKey(5, 0, first + i))

    return draw


@pytest.mark.parametrize(
    ("backend", "prefix", "number"),
    [
        ("native", "Glm4Moe", 0),
        ("native", "Glm4Moe", 1),
        ("native", "DeepseekV3", 0),
        ("native", "DeepseekV3", 1),
        ("native", "Qwen3Next", 1),
        ("native", "Qwen3_5Text", 1),
        ("native", "Qwen3_5MoeText", 1),
        ("torch", "Glm4Moe", 0),
        ("torch", "DeepseekV3", 1),
        ("torch", "Qwen3Next", 1),
    ],
)
def test_drafts_are_those_of_the_published_layer(
    backend: str, prefix: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_drafter, "UNLIKELY", -np.inf)
    model = make_mtp(case_of(prefix, number), tmp_path)
    tokens = np.random.default_rng(3).integers(3, 500, 37).tolist()
    found = proposals(model, tokens, [3, 20, 21], backend=backend, dtype="float32")
    for temperature, got in found.items():
        want = reference_drafts(model, [*tokens, got[0]], 4, drawn(temperature, 38))
        assert got[1:] == want


def test_tokens_that_it_missed_are_not_attended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_drafter, "UNLIKELY", -np.inf)
    model = make_mtp(case_of("Glm4Moe", 0), tmp_path)
    tokens = np.random.default_rng(3).integers(3, 500, 37).tolist()
    got = proposals(model, tokens, [20], first=16, dtype="float32")[1.0]
    draw = drawn(1.0, 38)
    want, whole = (
        reference_drafts(model, [*tokens, got[0]], 4, draw, first=first) for first in (16, 0)
    )
    assert got[1:] == want != whole


def test_gguf_files_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drafts are those of the folder that the file is made of."""
    monkeypatch.setattr(layer_drafter, "UNLIKELY", -np.inf)
    case = next(c for c in RECURRENT_CASES if c.prefix == "Qwen3_5Text")
    model = make_mtp(case, tmp_path / "m")
    path = tmp_path / "m.gguf"
    model.whole.save_pretrained(tmp_path / "whole")
    files = open_model(tmp_path / "whole")
    tensors = list(to_gguf(files, None, Loss()))
    names = {"e": "enorm", "h": "hnorm", "join": "eh_proj", "norm": "shared_head_norm"}
    for key, tensor in model.own.items():
        values = np.float32(tensor.numpy() + (0 if key == "join" else model.plus))
        stored = f"blk.{model.layers}.nextn.{names[key]}.weight"
        pieces = partial(iter, [values.tobytes()])
        tensors.append(OutTensor(stored, "F32", values.shape, values.nbytes, pieces))
    metadata = shape_metadata(files, gguf_family(files))
    metadata.pop("qwen35.full_attention_interval", None)
    metadata |= {
        "qwen35.nextn_predict_layers": 1,
        "qwen35.attention.recurrent_layers": [
            layer.recurrent is not None for layer in files.spec.layers
        ],
        "tokenizer.ggml.model": "no_vocab",
    }
    write_gguf(path, metadata, tensors, "")
    tokens = np.random.default_rng(4).integers(3, 500, 30).tolist()
    want = proposals(model, tokens, [11], dtype="float32")
    assert proposals(model._replace(folder=path), tokens, [11], dtype="float32") == want
    assert len(want[0.0]) == 5


def test_it_is_counted(tmp_path: Path) -> None:
    model = make_mtp(case_of("Glm4Moe", 1), tmp_path)
    asked = config(model.folder, dtype="float32")
    plain, needs = memory_needs(config(model.folder, speculate="off")), memory_needs(asked)
    assert memory_needs(config(model.folder, speculate="auto", dtype="float32")) == needs
    assert needs.weights.keys() - plain.weights.keys() == {"MTP layer"}
    assert needs.token_bytes == plain.token_bytes * 4 // 3  # a layer beside three
    values = sum(p.numel() for p in model.whole.model.layers[3].parameters())
    values += sum(tensor.numel() for tensor in model.own.values())
    assert 4 * values <= needs.weights["MTP layer"] < 4.4 * values  # rows are padded
    for parallel in ("tensor_parallel", "pipeline_parallel"):
        apart = config(model.folder, speculate="auto", **{parallel: 2})
        assert speculation_of(apart, open_model(str(model.folder))).drafters == ("lookup",)
    worker = load_worker(asked)
    info = worker.info
    assert 0 <= info.weight_bytes - needs.weight_bytes <= 8192
    assert info.kv_bytes_per_token == needs.token_bytes
    assert info.drafters == ("lookup", "mtp") and info.speculation == "auto"
    worker.runner.close()


def test_what_cannot_be_is_named(tmp_path: Path) -> None:
    model = make_mtp(case_of("Glm4Moe", 1), tmp_path)
    path = tmp_path / "model.safetensors"
    good = load_file(path)

    def refusal(changes: dict[str, Any]) -> str:
        tensors = {name: t for name, t in {**good, **changes}.items() if t is not None}
        save_file(tensors, path, {"format": "pt"})
        assert "mtp" not in load_worker_drafters(config(tmp_path, speculate="auto"))
        with pytest.raises(TidemillError) as caught:
            load_worker(config(tmp_path))
        assert caught.value.param == "speculate"
        return caught.value.message

    at = "model.layers.3."
    join, expert = at + "eh_proj.weight", at + "mlp.experts.1.up_proj.weight"
    assert join in refusal({join: None}) and model.layers == 3
    assert "layers.0.mlp.experts.1.up.weight" in refusal({expert: None})
    assert f"{join!r} has shape [96, 96]" in refusal({join: good[join][:, :96].contiguous()})
    copy = at + "shared_head.head.weight"
    message = refusal({copy: good[copy] + 1})
    assert copy in message and "lm_head.weight" in message
    none = refusal({name: None for name in good if name.startswith(at)})
    assert str(tmp_path) in none and "no MTP layer" in none


def load_worker_drafters(config: EngineConfig) -> tuple[str, ...]:
    worker = load_worker(config)
    worker.runner.close()
    return worker.info.drafters
