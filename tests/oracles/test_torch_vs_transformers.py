"""The torch backend in float32 against transformers, for every family and its variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.references import prompt, reference_greedy, reference_logits
from helpers.tiny_checkpoints import CASES, make_model, save

from tidemill.backends import torch as torch_backend
from tidemill.loading import open_model

LOGIT_TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = make_model(request.param)
    folder = tmp_path_factory.mktemp("oracle") / request.param
    return model, save(model, folder)


def _driver(folder: Path, **changes: object) -> BackendDriver:
    files = open_model(folder)
    return BackendDriver(torch_backend.load(files.spec, files.tensors, options(**changes)))


def test_logits_equal(case: Any) -> None:
    model, folder = case
    tokens = prompt(75)
    expected = reference_logits(model, tokens)
    driver = _driver(folder)
    for chunk in (None, 7):
        got = driver.all_logits(tokens, chunk)
        np.testing.assert_allclose(got, expected, atol=LOGIT_TOLERANCE, rtol=0)
    driver.backend.close()


def test_greedy_continuations_equal(case: Any) -> None:
    model, folder = case
    prompts = [prompt(5, seed=1), prompt(33, seed=2)]
    driver = _driver(folder)
    assert driver.greedy(prompts, 64) == [reference_greedy(model, p, 64) for p in prompts]
    driver.backend.close()
