"""Ropes that stretch the context: as far as transformers goes, with the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from helpers.backend_driver import BackendDriver, options
from helpers.references import reference_logits
from helpers.tiny_folder import CONFIG, write_folder

from tidemill.backends import native, torch
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.loading import open_model
from tidemill.models.rope import Reach, Rope, RopeScaling, inverse_frequencies, reach
from tidemill.worker.sizing import wanted_len

YARN = {"rope_type": "yarn", "factor": 4.0}
STRETCHED: dict[str, tuple[dict[str, Any], Reach]] = {
    "yarn": ({**YARN, "original_max_position_embeddings": 128}, Reach(512, 512)),
    "yarn, original not named": (YARN, Reach(512, 512)),
    "yarn, context stretched already": (
        {**YARN, "original_max_position_embeddings": 32}, Reach(128, 128),
    ),
    "linear": ({"rope_type": "linear", "factor": 4.0}, Reach(512, 512)),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, Reach(128, 512)),
    "none": ({"rope_type": "default"}, Reach(128, 128)),
}  # fmt: skip


def folder_of(scaling: dict[str, Any], folder: Path) -> Path:
    config = {**CONFIG, "model_type": "llama", "rope_scaling": scaling}
    return write_folder(folder, config=config)


@pytest.mark.parametrize("name", STRETCHED)
def test_the_stretched_context_is_served_and_may_be_asked_for(name: str, tmp_path: Path) -> None:
    scaling, reach = STRETCHED[name]
    spec = open_model(folder_of(scaling, tmp_path / "m")).spec
    assert (spec.max_positions, spec.reach) == (128, reach)

    def length(wanted: int | None) -> int:
        return wanted_len(EngineConfig(model="m", served_name="m", max_model_len=wanted), spec)

    assert length(None) == reach.usual and length(reach.longest) == reach.longest
    with pytest.raises(TidemillError, match=f"exceeds the {reach.longest} positions") as caught:
        length(reach.longest + 1)
    assert caught.value.kind == ErrorKind.CONFIG


@pytest.mark.parametrize("backend", [native, torch], ids=["native", "torch"])
@pytest.mark.parametrize("name", [n for n, (_, reach) in STRETCHED.items() if reach.longest > 128])
def test_logits_beyond_the_trained_context_equal(name: str, backend: Any, tmp_path: Path) -> None:
    folder = folder_of(STRETCHED[name][0], tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    files = open_model(folder)
    for count in (100, 300):  # dynamic: the base is that of the longest context served
        tokens = np.random.default_rng(count).integers(0, 64, count).tolist()
        driver = BackendDriver(
            backend.load(files.spec, files.tensors, options(max_positions=count))
        )
        got = driver.all_logits(tokens)
        np.testing.assert_allclose(got, reference_logits(model, tokens), atol=1e-3, rtol=0)
        driver.backend.close()


def test_layers_stretched_in_part_say_nothing_of_the_context() -> None:
    """Gemma 3's context is that of its stretched layers already."""
    local, whole = Rope(1e4, 16), Rope(1e6, 16, RopeScaling("linear", 8.0))
    assert reach([local, whole], 1024, 2**31) == Reach(1024, 1024)
    assert reach([whole, None, whole], 1024, 2**31) == Reach(8192, 8192)
    far = Rope(1e4, 16, RopeScaling("dynamic", 1e300, original_context=2))
    assert inverse_frequencies(far, 2**31)[-1] >= 0.0
    huge = Rope(1e6, 16, RopeScaling("linear", 1e30))
    assert reach([huge], 1024, 2**31) == Reach(2**31, 2**31)
