"""Tiers of a real engine: a conversation goes on from disk in the next process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.drive import request
from helpers.real_engine import VOCAB, real_engine

from tidemill import LLM, SamplingParams
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig, folder_and_size
from tidemill.engine.offline import InprocEngine
from tidemill.loading import bundled_models
from tidemill.worker.load import load_worker

SETTINGS = {"threads": 1, "kv_memory": 4 * 2**20, "max_num_seqs": 4}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPT = [5, 9, 12, 30, 7] * 80


def ids_of(llm: LLM, prompt: list[int]) -> tuple[list[int], int]:
    [output] = llm.generate([prompt], GREEDY)
    return list(output.outputs[0].token_ids), output.cached_tokens


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_a_conversation_goes_on_from_disk(tmp_path: Path, kv_dtype: str) -> None:
    disk = {**SETTINGS, "kv_disk": f"{tmp_path / 'kv'}:1GiB", "kv_dtype": kv_dtype}
    with LLM(**disk) as llm:
        first, cached = ids_of(llm, PROMPT)
    assert cached == 0
    turn = [*PROMPT, *first, 3, 4]
    with LLM(**SETTINGS, kv_dtype=kv_dtype) as quiet:
        want, _ = ids_of(quiet, turn)
    with LLM(**disk) as llm:
        got, cached = ids_of(llm, turn)
    assert got == want
    assert cached >= len(PROMPT) // 32 * 32
    with LLM(**{**disk, "block_size": 16}) as llm:  # other blocks
        assert ids_of(llm, turn) == (want, 0)


def asked_of(engine: InprocEngine, name: str, prompt: list[int]) -> tuple[list[int], int]:
    before = engine.stats.cached_tokens
    tokens = [
        token
        for output in engine.run([request(name, prompt, 40, seed=1)])
        for token in output.token_ids
    ]
    return tokens, engine.stats.cached_tokens - before


@pytest.mark.parametrize(
    ("backend", "model"),
    [
        ("native", "recurrent"),
        ("native", "state alone"),
        ("native", "mixers beside"),
        ("native", "windows"),
        ("native", "latent"),
        ("torch", "recurrent"),
    ],
)
def test_every_kind_of_cache_goes_on_from_disk(tmp_path: Path, backend: str, model: str) -> None:
    prompt = np.random.default_rng(1).integers(6, VOCAB, 100).tolist()
    config = EngineConfig(model="m", served_name="m", kv_disk=f"{tmp_path}:1GiB")
    engine = real_engine(backend, model=model, prefix_caching=False)
    first, _ = asked_of(engine, "a", prompt)
    turn = prompt + first + [7, 8, 9]
    want, _ = asked_of(engine, "b", turn)
    engine.close()
    engine = real_engine(backend, model=model, tiers=config)
    assert asked_of(engine, "a", prompt) == (first, 0)
    engine.close()
    for name in ("b", "again"):  # from disk: what the first turn left, and then all of the second
        engine = real_engine(backend, model=model, tiers=config)
        got, cached = asked_of(engine, name, turn)
        engine.close()
        assert got == want
        assert cached == (len(prompt) + 39 if name == "b" else len(turn) - 1) // 16 * 16


def test_encoders_have_no_tiers(tmp_path: Path) -> None:
    with pytest.raises(TidemillError) as caught:
        real_engine("native", model="encoder", tiers=EngineConfig(
            model="m", served_name="m", kv_disk=str(tmp_path)
        ))  # fmt: skip
    assert caught.value.kind is ErrorKind.UNSUPPORTED and caught.value.param == "kv_disk"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/a/b", ("/a/b", None)),
        ("/a/b:20GiB", ("/a/b", 20 * 2**30)),
        ("kv:5m", ("kv", 5 * 2**20)),
        ("/a:b/c", ("/a:b/c", None)),
    ],
)
def test_a_folder_and_its_size(text: str, found: tuple[str, int | None]) -> None:
    assert folder_and_size(text) == found


@pytest.mark.parametrize("text", ["", ":5GiB", "/a:", "/a:many"])
def test_what_is_no_folder_with_a_size(text: str) -> None:
    with pytest.raises(TidemillError) as caught:
        EngineConfig(model="m", served_name="m", kv_disk=text).validate()
    assert caught.value.param == "kv_disk"


def test_a_tier_that_cannot_be_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for settings, name in (
        ({"kv_ram": 100}, "kv_ram"),
        ({"kv_disk": f"{tmp_path}:100"}, "kv_disk"),
        ({"kv_disk": str(file)}, "kv_disk"),
        ({"kv_ram": 2**30, "prefix_caching": False}, "kv_ram"),
    ):
        with pytest.raises(TidemillError) as caught:
            LLM(**{**SETTINGS, **settings})  # type: ignore[arg-type]
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"kv_disk": "{file}/kv"}, "cannot be written"),
        ({"kv_disk": "/proc/kv"}, "cannot be written"),
        ({"kv_disk": "{folder}/kv:1KiB"}, "less than twice one block of"),
        ({"kv_ram": 1024}, "less than one block"),
        ({"kv_listen": "127.0.0.1:0"}, "TIDEMILL_KV_KEY"),
        ({"kv_listen": "127.0.0.1:99999", "key": "k" * 32}, "nothing can listen"),
        ({"kv_peers": "127.0.0.1:99999", "key": "k" * 32}, "must be HOST:PORT"),
    ],
)
def test_what_cannot_be_used_is_found_before_the_weights_are_read(
    tmp_path: Path, setting: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMILL_KV_KEY", raising=False)
    if key := setting.get("key"):
        monkeypatch.setenv("TIDEMILL_KV_KEY", key)
    (file := tmp_path / "file").write_text("")
    given = {
        name: value.format(file=file, folder=tmp_path) if isinstance(value, str) else value
        for name, value in setting.items()
        if name != "key"
    }
    lines: list[str] = []
    config = EngineConfig(model=str(bundled_models()["brook"]), served_name="m", threads=1, **given)
    with pytest.raises(TidemillError, match=words) as caught:
        load_worker(config, lines.append)
    assert caught.value.kind is ErrorKind.CONFIG and caught.value.param == next(iter(setting))
    assert not [line for line in lines if line.startswith("loading")]


def test_more_than_the_disk_has_is_said(tmp_path: Path) -> None:
    lines: list[str] = []
    given = {**SETTINGS, "kv_disk": f"{tmp_path / 'kv'}:9000TiB"}
    worker = load_worker(
        EngineConfig(model=str(bundled_models()["brook"]), served_name="m", **given), lines.append
    )
    assert worker.runner.mover is not None
    worker.runner.mover.close()
    assert [line for line in lines if "has room for" in line]
