"""Families that transformers does not have, against the model of its that computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from convert.test_gguf_families import write_without_vocabulary
from helpers.backend_driver import BackendDriver, options
from helpers.disguised import DISGUISES, Disguise, make_disguised
from helpers.references import prompt, reference_logits

from tidemill.backends import native
from tidemill.base.errors import TidemillError
from tidemill.loading import open_model
from tidemill.models.families.llama_likes import BAICHUAN, baichuan
from tidemill.models.gguf_config import config_from_gguf


@pytest.mark.parametrize("disguise", DISGUISES, ids=lambda d: f"{d.family}-{d.about}")
def test_same_logits_from_the_folder_and_from_gguf(disguise: Disguise, tmp_path: Path) -> None:
    model = make_disguised(disguise, tmp_path / "m")
    ids = prompt(60)
    expected = reference_logits(model, ids)
    for path in (tmp_path / "m", write_without_vocabulary(tmp_path / "m", tmp_path / "m.gguf")):
        files = open_model(path)
        loaded = native.load(files.spec, files.tensors, options(threads=2, max_positions=256))
        found = BackendDriver(loaded).all_logits(ids, 7)
        loaded.close()
        assert np.abs(found - expected).max() < 1e-3 * expected.std()


def test_baichuan_2_and_13b_are_refused_by_name() -> None:
    values = {"hidden_size": 8, "num_attention_heads": 1, "max_position_embeddings": 8}
    with pytest.raises(TidemillError, match="Baichuan 2"):
        baichuan({**values, "vocab_size": 125696})
    with pytest.raises(TidemillError, match="13B"):
        baichuan({"hidden_size": 8, "vocab_size": 8})
    own = {"block_count": 40, "context_length": 64, "attention.layer_norm_rms_epsilon": 1e-6}
    metadata = {f"baichuan.{key}": value for key, value in own.items()}
    assert BAICHUAN.gguf is not None
    with pytest.raises(TidemillError, match="13B"):
        baichuan({**config_from_gguf(metadata, {}, BAICHUAN.gguf), "vocab_size": 8})
