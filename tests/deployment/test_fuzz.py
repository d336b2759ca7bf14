"""Drawn and mutated deployment files: whole, or rejected with the place of every problem."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import deployment_fuzz
from helpers.deployment_files import GOOD

from tidemill.deployment.document import parse_document
from tidemill.deployment.resolve import resolve


def test_drawn_files_are_whole_or_rejected_with_places(tmp_path: Path) -> None:
    counts = deployment_fuzz.run(250, 0, tmp_path)
    assert min(counts[True], counts[False]) >= 25, "both happen"


def test_the_fuzzer_notices_a_problem_without_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment_fuzz.write_files(tmp_path)
    before = resolve(parse_document(GOOD.encode(), "t.toml", tmp_path))
    monkeypatch.setattr(
        "tidemill.deployment.conflicts._names", lambda deployment: [("server", "port", "is odd")]
    )
    with pytest.raises(AssertionError, match="is odd"):
        deployment_fuzz.check(b"[[models]]\nname = 'a'", tmp_path, before)
