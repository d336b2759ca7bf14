"""A part of `make structured` that needs no download: drawn and real schemas, both models."""

from __future__ import annotations

from oracles.schemas import drawn, packages, served
from oracles.structured import run


def test_documents_are_valid_and_valid_documents_are_allowed() -> None:
    outcome = run([*served(), *packages(), *drawn(140, seed=9)], max_tokens=60)
    assert not outcome.invalid and not outcome.forbidden and not outcome.errors
    assert sum(outcome.accepted.values()) >= 150
    assert outcome.stopped["brook"] > 40 and outcome.stopped["random weights"] > 60
