"""The side-by-side benchmark's own logic: verdicts, and the cache it makes for llama.cpp."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "workers")]

from llama_state import tile_state  # noqa: E402
from rows import Outcome, Row, Target, markdown  # noqa: E402


@pytest.mark.parametrize(
    ("reached", "target", "met"),
    [
        (1.5, Target(1.5, "x"), True),
        (1.49, Target(1.5, "x"), False),
        (0.3, Target(0.3, "x", at_most=True), True),
        (0.31, Target(0.3, "x", at_most=True), False),
        (float("nan"), Target(1.0, "x"), False),
        (float("nan"), Target(1.0, "x", at_most=True), False),
        (3.0, None, None),
    ],
)
def test_a_verdict(reached: float, target: Target | None, met: bool | None) -> None:
    row = Row("key", "work", "ours", "theirs", reached, target)
    assert row.met is met
    assert Outcome.from_json(Outcome([row], {}).to_json()).rows[0].met is met


def test_a_missed_target_says_why() -> None:
    rows = [
        Row("a-one", "first", "1", "2", 0.5, Target(1.0, "x")),
        Row("b", "second", "1", "2", 2.0, Target(1.0, "x")),
        Row("c", "third", "none: missing", "", float("nan"), Target(1.0, "x")),
    ]
    text = markdown(rows, {"a": "a reason.", "a-one": "its own reason."})
    assert "- first: its own reason." in text
    assert "- second" not in text
    assert "- third: not yet found." in text
    assert "| third | none: missing |  | none |" in text


def saved(cells: int, transposed: bool, streams: int = 2) -> bytes:
    """What llama.cpp writes for a sequence of two layers with K and V rows of 6 and 4 bytes."""
    out = b"MAGCSEQ0" + struct.pack("<II", streams, cells)
    out += b"".join(struct.pack("<iIi", i, 1, 0) for i in range(cells))
    out += struct.pack("<II", int(transposed), 2)
    for layer in range(2):
        out += struct.pack("<iQ", 1, 6) + bytes([layer] * 6 * cells)
    for layer in range(2):
        if transposed:
            out += struct.pack("<iII", 1, 2, 2)
            out += b"".join(bytes([10 + layer + row] * 2 * cells) for row in range(2))
        else:
            out += struct.pack("<iQ", 1, 4) + bytes([10 + layer] * 4 * cells)
    return out + bytes(4 * (streams - 1))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_tiled_state_is_that_of_a_longer_sequence(transposed: bool) -> None:
    assert tile_state(saved(4, transposed), 12) == saved(12, transposed)
    with pytest.raises(ValueError, match="cannot be repeated"):
        tile_state(saved(4, transposed), 10)
    with pytest.raises(ValueError, match="another layout"):
        tile_state(saved(4, transposed) + b"x", 12)
