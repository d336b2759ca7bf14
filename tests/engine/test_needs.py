"""What a model needs, read by a child process and kept while its files stay."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.engine import needs
from tidemill.engine.needs import NeedsReader
from tidemill.loading.locate import bundled_models
from tidemill.worker.needs import memory_needs


def config(model: Path, **changes: object) -> EngineConfig:
    return EngineConfig(model=str(model), served_name="m", max_model_len=256, **changes)  # type: ignore[arg-type]


async def test_a_model_is_read_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[EngineConfig] = []
    compute = needs._compute

    async def noting(asked: EngineConfig) -> object:
        started.append(asked)
        return await compute(asked)

    monkeypatch.setattr(needs, "_compute", noting)
    model = shutil.copytree(bundled_models()["brook"], tmp_path / "brook")
    reader = NeedsReader()
    expected = memory_needs(config(model))
    first, second = await asyncio.gather(
        reader.needs(config(model)), reader.needs(config(model, kv_memory=2**30))
    )
    assert first == second == expected and len(started) == 1
    assert (await reader.needs(config(model, quantize="q8_0"))) != first
    os.utime(model / "config.json", (1, 1))
    assert await reader.needs(config(model)) == expected and len(started) == 3


async def test_errors_are_those_of_an_engine(tmp_path: Path) -> None:
    reader = NeedsReader()
    with pytest.raises(TidemillError) as caught:
        await reader.needs(config(tmp_path / "nothing"))
    assert caught.value.kind is ErrorKind.NOT_FOUND
    with pytest.raises(TidemillError, match="4097") as caught:
        asked = EngineConfig(model=str(bundled_models()["brook"]), served_name="m")
        await reader.needs(asked.__class__(model=asked.model, served_name="m", max_model_len=4097))
    assert (caught.value.kind, caught.value.param) == (ErrorKind.CONFIG, "max_model_len")


def test_its_reader_imports_no_numpy() -> None:
    script = "import sys, tidemill.engine.needs; print('numpy' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "False"
