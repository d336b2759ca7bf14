"""Every family against transformers, one shape each; `make families` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.family_cases import CASES, Case
from oracles.families import compare


@pytest.mark.parametrize("case", [c for c in CASES if c.quick], ids=lambda c: c.family)
def test_family_equals_transformers(case: Case, tmp_path: Path) -> None:
    for executor, outcome in compare(case, tmp_path / "model").items():
        assert outcome.good, f"{executor}: {outcome}"
