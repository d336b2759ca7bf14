"""A part of `make structured` that needs no download: drawn and real schemas, both models."""

from __future__ import annotations

from oracles.schemas import composed, drawn, packages, served
from oracles.structured import run


def test_documents_are_valid_and_valid_documents_are_allowed() -> None:
    cases = [*served(), *packages(), *drawn(110, seed=9), *composed(90, seed=4)]
    outcome = run(cases, max_tokens=50)
    assert not outcome.invalid and not outcome.forbidden and not outcome.errors
    assert sum(outcome.accepted.values()) >= 140
    assert outcome.stopped["brook"] > 40 and outcome.stopped["random weights"] > 60
