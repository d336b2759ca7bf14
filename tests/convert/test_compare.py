"""`quantize --check`: figures against a direct computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.backend_driver import BackendDriver, options
from helpers.tiny_folder import tensors, write_folder

from tidemill.backends import native
from tidemill.convert.compare import compare
from tidemill.loading import open_model


def log_probabilities(folder: Path, tokens: list[int]) -> np.ndarray:
    files = open_model(folder)
    driver = BackendDriver(native.load(files.spec, files.tensors, options()))
    logits = driver.all_logits(tokens).astype(np.float64)
    driver.backend.close()
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_figures(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "a")
    changed = {n: t + np.float32(0.02) * np.sign(t) for n, t in tensors().items()}
    other = write_folder(tmp_path / "b", weights=changed)
    tokens = np.random.default_rng(0).integers(0, 64, 128).tolist()
    found = compare(source, other, tokens, tmp_path / "scratch.npy", threads=1)
    assert not (tmp_path / "scratch.npy").exists()
    p, q = (log_probabilities(folder, tokens)[:-1] for folder in (source, other))
    at = np.arange(127), tokens[1:]
    assert found.tokens == 127
    assert found.source_perplexity == pytest.approx(np.exp(-p[at].mean()), rel=1e-6)
    assert found.perplexity == pytest.approx(np.exp(-q[at].mean()), rel=1e-6)
    assert found.divergence == pytest.approx((np.exp(p) * (p - q)).sum(1).mean(), rel=1e-6)
    assert found.same_choice == pytest.approx((p.argmax(1) == q.argmax(1)).mean())
    same = compare(source, source, tokens, tmp_path / "scratch.npy", threads=1)
    assert same.divergence == 0 and same.same_choice == 1
