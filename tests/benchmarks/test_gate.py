"""The gate fails on a regression that is shown, and on no other."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gate  # noqa: E402


def rounds(slower: float, noise: float, count: int = 8) -> list[tuple[float, float]]:
    """Values of which more is worse, of a machine whose speed wanders far more than they do."""
    draws = random.Random(1)
    machine = [draws.uniform(1, 3) for _ in range(count)]
    return [(m, m * slower * draws.uniform(1 - noise, 1 + noise)) for m in machine]


@pytest.mark.parametrize(
    ("slower", "noise", "regression"),
    [
        (1.0, 0.02, False),
        (1.10, 0.02, True),
        (1.04, 0.001, True),
        (1.02, 0.001, False),  # within the limit
        (1.10, 0.5, False),  # not shown
        (0.8, 0.01, False),
    ],
)
def test_a_regression_is_what_is_shown(slower: float, noise: float, regression: bool) -> None:
    pairs = rounds(slower, noise)
    found = gate.judged("m", pairs, more_is_better=False)
    assert found.regression is regression and found.slower[0] < found.slower[1]
    faster = [(1 / base, 1 / new) for base, new in pairs]  # as a rate
    again = gate.judged("m", faster, more_is_better=True)
    assert again.regression is regression and again.slower == pytest.approx(found.slower)


def test_counts_are_judged_alone() -> None:
    assert not gate.judged("n", [(1000, 1029)], more_is_better=False).regression
    assert gate.judged("n", [(1000, 1031)], more_is_better=False).regression
    text = gate.table(
        [gate.judged("n", [(1000, 1100)], more_is_better=False)],
        [gate.Version("v1", Path("a")), gate.Version("new", Path("b"))],
    )
    assert "| n | 1,000 | 1,100 | +10.0 % | **regression** |" in text


def test_the_base_is_the_last_release_or_the_commit_before(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        subprocess.run(["git", *identity, *words], check=True, cwd=tmp_path, capture_output=True)

    git("init")
    root, gate.ROOT = gate.ROOT, tmp_path
    try:
        git("commit", "--allow-empty", "-m", "one")
        git("commit", "--allow-empty", "-m", "two")
        assert gate.last_release() == "HEAD~1"
        for tag in ("v0.9.0", "v0.10.0", "other"):
            git("tag", tag)
        assert gate.last_release() == "v0.10.0"
    finally:
        gate.ROOT = root
