"""Tied embeddings, where the files hold an output layer all the same: as transformers decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from helpers.backend_driver import BackendDriver, options
from helpers.references import reference_logits
from helpers.tiny_folder import CONFIG, tensors, write_folder

from tidemill.backends import native
from tidemill.loading import open_model
from tidemill.models import tensors as names

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def folder_of(folder: Path, head: np.ndarray | None, **config: Any) -> Path:
    weights = {k: v for k, v in tensors().items() if k != HEAD}
    if head is not None:
        weights[HEAD] = head
    said = {**CONFIG, "model_type": "llama", "tie_word_embeddings": True, **config}
    return write_folder(folder, config=said, weights=weights)


def changed_late() -> np.ndarray:
    """The embedding but for the last value: all of it must be looked at."""
    head = tensors()[EMBED].copy()
    head[-1, -1] += 1
    return head


@pytest.mark.parametrize("kind", ["none", "copy", "another", "changed late"])
def test_the_output_layer_is_the_one_that_transformers_uses(kind: str, tmp_path: Path) -> None:
    heads = {"none": None, "copy": tensors()[EMBED], "another": tensors()[HEAD]}
    head = changed_late() if kind == "changed late" else heads[kind]
    folder = folder_of(tmp_path / "m", head)
    files = open_model(folder)
    differs = kind in ("another", "changed late")
    assert files.spec.tied_embeddings is not differs and (names.LM_HEAD in files.tensors) is differs
    assert [HEAD in note for note in files.notes] == [True] * differs
    tokens = list(range(3, 40))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    driver = BackendDriver(native.load(files.spec, files.tensors, options()))
    got = driver.all_logits(tokens)
    driver.backend.close()
    np.testing.assert_allclose(got, reference_logits(model, tokens), atol=1e-3, rtol=0)


def test_a_copy_in_another_type_is_an_output_layer_of_its_own(tmp_path: Path) -> None:
    head = tensors()[EMBED].astype(np.float16)
    assert not open_model(folder_of(tmp_path / "m", head)).spec.tied_embeddings


def test_what_no_family_reads_is_named_where_transformers_cannot_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from tidemill.backends.transformers import load
    from tidemill.base.errors import TidemillError

    files = open_model(folder_of(tmp_path / "m", None, wobble=3), "auto")
    for name in [n for n in sys.modules if n.startswith("tidemill.backends.transformers.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # not installed
    with pytest.raises(TidemillError, match=r"'wobble' is not known for llama.*needs torch"):
        load(files.spec, files.tensors, options())
