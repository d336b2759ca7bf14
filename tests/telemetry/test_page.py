"""docs/observability.md names every phase and every cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.contract.history import ChunkLimit, Miss, PreemptionCause
from tidemill.telemetry.phases import PHASES
from tidemill.telemetry.reasons import CHUNKS, MISSES, PREEMPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"


@pytest.mark.parametrize("names", [PHASES, Miss, ChunkLimit, PreemptionCause])
def test_every_name_is_described(names: object) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in map(str, names):  # type: ignore[call-overload]
        assert f"`{name}`" in text, name


def test_every_cause_has_words() -> None:
    assert MISSES.keys() == set(Miss) and CHUNKS.keys() == set(ChunkLimit)
    assert PREEMPTIONS.keys() == set(PreemptionCause)
